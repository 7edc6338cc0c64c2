// Assignment of nodes to parts, by streaming over the edges several times, with O(nodes) memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace khop {

// The in-edges of one edge type. Nodes of all types share one numbering, type after type.
struct InEdges {
  std::int64_t first_source, first_destination;
  std::span<const std::int64_t> indptr;  // of the destination type's nodes
  std::span<const std::int32_t> narrow;  // sources, by their own type's ids, in this
  std::span<const std::int64_t> wide;    // or in this
};

// A balanced quantity: no part gets a node that would exceed `capacity` while another part has room.
struct Constraint {
  std::vector<std::int64_t> by_type;  // weight of a node by type,
  std::uint8_t member = 0;            // for nodes with this bit in `members`; 0: for all nodes
  bool by_degree = false;             // times its in-edges
  std::int64_t capacity = 0;
};

enum class Score { ldg, fennel };

struct AssignSettings {
  std::vector<std::int64_t> first_node;  // of each type; the last entry is the number of nodes
  std::vector<InEdges> edges;
  std::span<const std::uint8_t> members;  // a byte per node; empty if no constraint reads it
  std::vector<Constraint> constraints;    // at least one
  int parts = 2;                          // up to kMostParts
  Score score = Score::ldg;
  std::int64_t cluster_limit = 1;  // nodes
};

// A pass over nodes may be split into calls at multiples of block(). Nodes of a block are scored against the state before the
// block, on any number of threads, then placed sequentially, so the result depends neither on the split nor on the threads.
// Label holds a node's number. The constructor checks all edges, and throws std::invalid_argument for inconsistent settings and
// spans.
template <class Label>
class Assigner {
 public:
  static constexpr std::int64_t kLeastBlock = 64, kMostBlock = 4096, kBlocks = 64;
  static constexpr int kMostParts = 4096;

  explicit Assigner(AssignSettings settings);

  std::int64_t block() const { return block_; }  // nodes: a share of the graph, within limits

  // Label propagation: each node joins the cluster of most of its neighbors that has room.
  void cluster(std::int64_t begin, std::int64_t end, int threads);

  // Divides clusters into blocks, largest first. Ends clustering.
  std::int64_t num_cluster_blocks();

  // Places whole clusters by score. A pass begins with block 0: parts are then empty, but neighbors count in their previous parts.
  void place_clusters(std::int64_t begin_block, std::int64_t end_block, int threads);

  // Places single nodes by score; a pass begins with node 0, as above.
  void stream(std::int64_t begin, std::int64_t end, int threads);

  // Moves a node to the part of most of its neighbors that has room; always moves it out of an overfull part.
  void refine(std::int64_t begin, std::int64_t end, int threads);

  std::span<const std::uint16_t> parts() const { return part_; }
  std::span<const std::int64_t> loads() const { return loads_; }  // parts x constraints

 private:
  static constexpr std::uint16_t kNowhere = 0xffff;
  enum class Place { score, most };

  int type_of(std::int64_t node) const;
  void add_weights(std::int64_t node, std::int64_t* weights) const;
  void add_load(int part, const std::int64_t* weights, std::int64_t sign);
  int best_part(const std::int64_t* counts, const std::int64_t* weights, int stay) const;
  double score(std::int64_t count, double fullness) const;
  void place_nodes(std::int64_t begin, std::int64_t end, Place place, int threads);
  void count_cluster_block(std::int64_t block, std::span<std::int64_t> counts, int threads) const;
  Label candidate(std::int64_t node, class LabelCounts& counts) const;
  template <class Fn>
  void each_row(std::int64_t node, Fn&& fn) const;  // fn(sources, number of the first source, begin, end) for each edge type
  template <class Ahead, class Fn>
  void each_neighbor(std::int64_t node, Ahead&& ahead, Fn&& fn) const;
  void prefetch_rows(std::int64_t position, std::int64_t end) const;  // of members_ after a position

  AssignSettings settings_;
  std::int64_t nodes_, block_;
  double fennel_;  // the penalty of the Fennel score for a full part
  std::vector<std::vector<InEdges>> by_type_;
  std::vector<Label> label_, size_;  // size_[label] nodes have a label
  std::vector<Label> members_;       // nodes by cluster, the largest cluster first
  std::vector<std::int64_t> cluster_begin_, block_begin_;  // positions in members_; in cluster_begin_
  std::vector<std::uint16_t> part_;
  std::vector<std::int64_t> loads_;
};

}  // namespace khop
