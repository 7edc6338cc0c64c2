// Linear deterministic greedy: Stanton and Kliot, Streaming graph partitioning for large distributed graphs, KDD 2012.
// Fennel: Tsourakakis et al., WSDM 2014. Several passes: Nishimura and Ugander, Restreaming graph partitioning, KDD 2013.
// Clusters first: Hollocou et al. 2017; Mayer et al., 2PS, 2020; size-limited label propagation: Meyerhenke et al., 2014.
#include "assign.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "checks.h"
#include "label_counts.h"
#include "parallel.h"

namespace khop {
namespace {

constexpr std::int64_t kGrain = 256;  // fewer nodes are not worth a thread
constexpr double kGamma = 1.5;        // Fennel's exponent

// Distances of prefetches of random reads: the values of a neighbor, in edges; for rows in random order, the offsets, sources and
// values of a row, in nodes.
constexpr std::size_t kEdgesAhead = 24;
constexpr std::int64_t kOffsetsAhead = 12, kSourcesAhead = 8, kValuesAhead = 4;
constexpr std::size_t kMostAhead = 64;  // edges of a row

void require(bool holds, const std::string& problem) {
  if (!holds) throw std::invalid_argument(problem);
}

// The rows of an edge type are the nodes of one type, and its sources are nodes.
void check_edges(const InEdges& edges, const std::vector<std::int64_t>& first_node) {
  const auto count = static_cast<std::int64_t>(std::max(edges.narrow.size(), edges.wide.size()));
  check_offsets(edges.indptr, count, "indptr");
  const std::int64_t rows = static_cast<std::int64_t>(edges.indptr.size()) - 1, nodes = first_node.back();
  const std::string given = std::to_string(rows) + " rows from node " + std::to_string(edges.first_destination) + " on";
  require(edges.first_source >= 0 && edges.first_source <= nodes, "sources from node " + std::to_string(edges.first_source) + " on");
  if (rows > 0) {
    const auto next = std::upper_bound(first_node.begin(), first_node.end(), edges.first_destination);
    const bool is_type = next != first_node.begin() && next != first_node.end() && *(next - 1) == edges.first_destination &&
                         *next - edges.first_destination == rows;
    require(is_type, given + ": a type has other nodes");
  }
  check_ids(edges.narrow, nodes - edges.first_source, "source", 1);
  check_ids(edges.wide, nodes - edges.first_source, "source", 1);
}

AssignSettings checked(AssignSettings settings) {
  const auto& first = settings.first_node;
  require(first.size() >= 2 && first.front() == 0 && std::is_sorted(first.begin(), first.end()),
          "first_node: must begin with 0, ascend and end with the number of nodes");
  require(settings.parts >= 1 && settings.parts <= Assigner<std::uint32_t>::kMostParts,
          "parts " + std::to_string(settings.parts) + ": must be 1 to " + std::to_string(Assigner<std::uint32_t>::kMostParts));
  require(!settings.constraints.empty(), "no limits: say what parts are to share out");
  for (const Constraint& constraint : settings.constraints) {
    check_size(constraint.by_type.size(), first.size() - 1, "by_type of a limit");
    if (constraint.member != 0) check_size(settings.members.size(), static_cast<std::size_t>(first.back()), "members");
  }
  for (const InEdges& edges : settings.edges) check_edges(edges, first);
  return settings;
}

void check_span(std::int64_t begin, std::int64_t end, std::int64_t limit) {
  require(0 <= begin && begin <= end && end <= limit, "from " + std::to_string(begin) + " to " + std::to_string(end) +
                                                          ": must rise within [0, " + std::to_string(limit) + "]");
}

}  // namespace

template <class Label>
Assigner<Label>::Assigner(AssignSettings settings)
    : settings_(checked(std::move(settings))),
      nodes_(settings_.first_node.back()),
      block_(std::clamp(nodes_ / kBlocks, kLeastBlock, kMostBlock)),
      by_type_(settings_.first_node.size() - 1),
      label_(static_cast<std::size_t>(nodes_)),
      size_(static_cast<std::size_t>(nodes_), 1),
      part_(static_cast<std::size_t>(nodes_), kNowhere),
      loads_(static_cast<std::size_t>(settings_.parts) * settings_.constraints.size()) {
  require(nodes_ <= static_cast<std::int64_t>(std::min<std::uint64_t>(std::numeric_limits<Label>::max(), std::numeric_limits<std::int64_t>::max())),
          std::to_string(nodes_) + " nodes: more than labels of " + std::to_string(8 * sizeof(Label)) + " bits can name");
  std::iota(label_.begin(), label_.end(), Label{0});
  std::int64_t edges = 0;
  for (const InEdges& in_edges : settings_.edges) {
    if (in_edges.indptr.size() < 2) continue;  // into a type without nodes, whose first node is another type's
    by_type_[static_cast<std::size_t>(type_of(in_edges.first_destination))].push_back(in_edges);
    edges += in_edges.indptr.back();
  }
  // alpha gamma load^(gamma - 1), alpha = sqrt(parts) edges / nodes^gamma, for a part with its equal share. Undirected edges
  // occur twice among the in-edges.
  const double nodes = static_cast<double>(std::max<std::int64_t>(nodes_, 1));
  const double alpha = std::sqrt(static_cast<double>(settings_.parts)) * static_cast<double>(edges) / 2 / (nodes * std::sqrt(nodes));
  fennel_ = alpha * kGamma * std::sqrt(nodes / settings_.parts);
}

template <class Label>
int Assigner<Label>::type_of(std::int64_t node) const {
  const auto& first = settings_.first_node;
  // The last type that begins at or before the node; empty types begin where the next type begins.
  return static_cast<int>(std::upper_bound(first.begin(), first.end() - 1, node) - first.begin()) - 1;
}

template <class Label>
template <class Fn>
void Assigner<Label>::each_row(std::int64_t node, Fn&& fn) const {
  for (const InEdges& edges : by_type_[static_cast<std::size_t>(type_of(node))]) {
    const auto row = static_cast<std::size_t>(node - edges.first_destination);
    const auto begin = static_cast<std::size_t>(edges.indptr[row]), end = static_cast<std::size_t>(edges.indptr[row + 1]);
    if (edges.narrow.empty()) {
      fn(edges.wide, edges.first_source, begin, end);
    } else {
      fn(edges.narrow, edges.first_source, begin, end);
    }
  }
}

// `ahead` prefetches the values of a later neighbor, in this row or later rows.
template <class Label>
template <class Ahead, class Fn>
void Assigner<Label>::each_neighbor(std::int64_t node, Ahead&& ahead, Fn&& fn) const {
  each_row(node, [&](auto sources, std::int64_t first, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      if (i + kEdgesAhead < sources.size()) ahead(static_cast<std::size_t>(first + sources[i + kEdgesAhead]));
      fn(static_cast<std::size_t>(first + sources[i]));
    }
  });
}

// Nodes are in the order of their clusters, so their rows are in random order.
template <class Label>
void Assigner<Label>::prefetch_rows(std::int64_t position, std::int64_t end) const {
  const auto node_at = [&](std::int64_t i) { return static_cast<std::int64_t>(members_[static_cast<std::size_t>(i)]); };
  if (position + kOffsetsAhead < end) {
    const std::int64_t node = node_at(position + kOffsetsAhead);
    for (const InEdges& edges : by_type_[static_cast<std::size_t>(type_of(node))]) {
      __builtin_prefetch(edges.indptr.data() + (node - edges.first_destination));
    }
  }
  if (position + kSourcesAhead < end) {
    each_row(node_at(position + kSourcesAhead), [](auto sources, std::int64_t, std::size_t begin, std::size_t stop) {
      constexpr std::size_t kLine = 64 / sizeof(sources[0]);
      for (std::size_t i = begin; i < std::min(stop, begin + kMostAhead); i += kLine) __builtin_prefetch(sources.data() + i);
    });
  }
  if (position + kValuesAhead < end) {
    each_row(node_at(position + kValuesAhead), [&](auto sources, std::int64_t first, std::size_t begin, std::size_t stop) {
      for (std::size_t i = begin; i < std::min(stop, begin + kMostAhead); ++i) {
        const auto neighbor = static_cast<std::size_t>(first + sources[i]);
        __builtin_prefetch(&label_[neighbor]);
        __builtin_prefetch(&part_[neighbor]);
      }
    });
  }
}

template <class Label>
void Assigner<Label>::add_weights(std::int64_t node, std::int64_t* weights) const {
  const auto type = static_cast<std::size_t>(type_of(node));
  for (std::size_t k = 0; k < settings_.constraints.size(); ++k) {
    const Constraint& constraint = settings_.constraints[k];
    std::int64_t weight = constraint.by_type[type];
    if (weight == 0) continue;
    if (constraint.member != 0 && (settings_.members[static_cast<std::size_t>(node)] & constraint.member) == 0) continue;
    if (constraint.by_degree) {
      std::int64_t degree = 0;
      for (const InEdges& edges : by_type_[type]) {
        const auto row = static_cast<std::size_t>(node - edges.first_destination);
        degree += edges.indptr[row + 1] - edges.indptr[row];
      }
      weight *= degree;
    }
    weights[k] += weight;
  }
}

template <class Label>
void Assigner<Label>::add_load(int part, const std::int64_t* weights, std::int64_t sign) {
  std::int64_t* const loads = loads_.data() + static_cast<std::size_t>(part) * settings_.constraints.size();
  for (std::size_t k = 0; k < settings_.constraints.size(); ++k) loads[k] += sign * weights[k];
}

template <class Label>
double Assigner<Label>::score(std::int64_t count, double fullness) const {
  const auto neighbors = static_cast<double>(count);
  return settings_.score == Score::ldg ? neighbors * (1 - fullness) : neighbors - fennel_ * std::sqrt(fullness);
}

// The part with the best score among those with room; ties go to the emptier part, then to the first. Without room anywhere, the
// emptiest part. Unless `stay` is -1, the score is the number of neighbors, and the node stays unless another part has more.
template <class Label>
int Assigner<Label>::best_part(const std::int64_t* counts, const std::int64_t* weights, int stay) const {
  const std::size_t kinds = settings_.constraints.size();
  int best = -1, emptiest = 0;
  double best_score = 0, best_fullness = 0, least = 0;
  for (int part = 0; part < settings_.parts; ++part) {
    const std::int64_t* const loads = loads_.data() + static_cast<std::size_t>(part) * kinds;
    double fullness = 0;
    bool room = true;
    for (std::size_t k = 0; k < kinds; ++k) {
      if (weights[k] == 0) continue;
      const std::int64_t capacity = settings_.constraints[k].capacity;
      room = room && loads[k] + weights[k] <= capacity;
      fullness = std::max(fullness, static_cast<double>(loads[k]) / static_cast<double>(std::max<std::int64_t>(capacity, 1)));
    }
    if (part == 0 || fullness < least) {
      least = fullness;
      emptiest = part;
    }
    if (!room) continue;
    const double value = stay < 0 ? score(counts[part], fullness) : static_cast<double>(counts[part]) + (part == stay ? 0.5 : 0.0);
    if (best < 0 || value > best_score || (value == best_score && fullness < best_fullness)) {
      best = part;
      best_score = value;
      best_fullness = fullness;
    }
  }
  return best < 0 ? emptiest : best;
}

template <class Label>
Label Assigner<Label>::candidate(std::int64_t node, LabelCounts& counts) const {
  counts.clear();
  each_neighbor(
      node, [&](std::size_t next) { __builtin_prefetch(&label_[next]); },
      [&](std::size_t neighbor) { counts.add(static_cast<std::uint64_t>(label_[neighbor])); });
  const Label own = label_[static_cast<std::size_t>(node)];
  Label best = own;
  std::int64_t most = counts.count(static_cast<std::uint64_t>(own));
  counts.each([&](std::uint64_t other, std::int64_t count) {
    const auto label = static_cast<Label>(other);
    const bool more = count > most || (count == most && best != own && label < best);
    if (more && static_cast<std::int64_t>(size_[label]) < settings_.cluster_limit) {
      best = label;
      most = count;
    }
  });
  return best;
}

template <class Label>
void Assigner<Label>::cluster(std::int64_t begin, std::int64_t end, int threads) {
  check_span(begin, end, nodes_);
  require(block_begin_.empty(), "cluster: clustering has ended");
  std::vector<Label> wanted(static_cast<std::size_t>(block_));
  for (std::int64_t block = begin; block < end; block += block_) {
    const std::int64_t count = std::min(block_, end - block);
    parallel_for(threads, count, kGrain, [&](std::int64_t from, std::int64_t to) {
      LabelCounts counts;
      for (std::int64_t i = from; i < to; ++i) wanted[static_cast<std::size_t>(i)] = candidate(block + i, counts);
    });
    for (std::int64_t i = 0; i < count; ++i) {
      Label& label = label_[static_cast<std::size_t>(block + i)];
      const Label other = wanted[static_cast<std::size_t>(i)];
      if (other == label || static_cast<std::int64_t>(size_[other]) >= settings_.cluster_limit) continue;
      --size_[label];
      ++size_[other];
      label = other;
    }
  }
}

template <class Label>
std::int64_t Assigner<Label>::num_cluster_blocks() {
  if (!block_begin_.empty()) return static_cast<std::int64_t>(block_begin_.size()) - 1;
  std::vector<Label> clusters;
  for (std::int64_t label = 0; label < nodes_; ++label) {
    if (size_[static_cast<std::size_t>(label)] > 0) clusters.push_back(static_cast<Label>(label));
  }
  std::stable_sort(clusters.begin(), clusters.end(), [&](Label a, Label b) { return size_[a] > size_[b]; });
  block_begin_.push_back(0);
  std::int64_t position = 0, block_start = 0;
  for (const Label label : clusters) {
    cluster_begin_.push_back(position);
    position += static_cast<std::int64_t>(size_[label]);
    if (position - block_start >= block_) {
      block_begin_.push_back(static_cast<std::int64_t>(cluster_begin_.size()));
      block_start = position;
    }
  }
  cluster_begin_.push_back(position);
  const auto num_clusters = static_cast<std::int64_t>(clusters.size());
  if (block_begin_.back() != num_clusters) block_begin_.push_back(num_clusters);
  // size_ becomes the next free position of each cluster, to distribute the nodes.
  for (std::size_t i = 0; i < clusters.size(); ++i) size_[clusters[i]] = static_cast<Label>(cluster_begin_[i]);
  members_.resize(static_cast<std::size_t>(nodes_));
  for (std::int64_t node = 0; node < nodes_; ++node) {
    members_[static_cast<std::size_t>(size_[label_[static_cast<std::size_t>(node)]]++)] = static_cast<Label>(node);
  }
  std::vector<Label>().swap(size_);
  return static_cast<std::int64_t>(block_begin_.size()) - 1;
}

// counts[cluster of the block][part]: edges from placed nodes of other clusters.
template <class Label>
void Assigner<Label>::count_cluster_block(std::int64_t block, std::span<std::int64_t> counts, int threads) const {
  const auto parts = static_cast<std::size_t>(settings_.parts);
  const std::int64_t first = block_begin_[static_cast<std::size_t>(block)], last = block_begin_[static_cast<std::size_t>(block) + 1];
  const std::int64_t begin = cluster_begin_[static_cast<std::size_t>(first)], end = cluster_begin_[static_cast<std::size_t>(last)];
  std::fill(counts.begin(), counts.end(), 0);
  parallel_for(threads, end - begin, kGrain, [&](std::int64_t from, std::int64_t to) {
    std::vector<std::int64_t> own(parts);
    const auto clusters = cluster_begin_.begin();
    std::int64_t cluster = std::upper_bound(clusters + first, clusters + last, begin + from) - clusters - 1;
    for (std::int64_t i = begin + from; i < begin + to;) {
      const std::int64_t stop = std::min(begin + to, cluster_begin_[static_cast<std::size_t>(cluster) + 1]);
      std::fill(own.begin(), own.end(), 0);
      for (; i < stop; ++i) {
        prefetch_rows(i, begin + to);
        const auto node = static_cast<std::size_t>(members_[static_cast<std::size_t>(i)]);
        const Label label = label_[node];
        each_row(static_cast<std::int64_t>(node), [&](auto sources, std::int64_t first_source, std::size_t first_edge, std::size_t last_edge) {
          for (std::size_t edge = first_edge; edge < last_edge; ++edge) {
            const auto other = static_cast<std::size_t>(first_source + sources[edge]);
            if (label_[other] != label && part_[other] != kNowhere) ++own[part_[other]];
          }
        });
      }
      std::int64_t* const total = counts.data() + static_cast<std::size_t>(cluster - first) * parts;
      for (std::size_t p = 0; p < parts; ++p) {  // integers: the order of the sums does not matter
        std::atomic_ref<std::int64_t>(total[p]).fetch_add(own[p], std::memory_order_relaxed);
      }
      ++cluster;
    }
  });
}

template <class Label>
void Assigner<Label>::place_clusters(std::int64_t begin_block, std::int64_t end_block, int threads) {
  check_span(begin_block, end_block, static_cast<std::int64_t>(std::max<std::size_t>(block_begin_.size(), 1)) - 1);
  if (begin_block == 0) std::fill(loads_.begin(), loads_.end(), 0);
  const auto parts = static_cast<std::size_t>(settings_.parts);
  std::vector<std::int64_t> counts, weights(settings_.constraints.size());
  for (std::int64_t block = begin_block; block < end_block; ++block) {
    const auto first = static_cast<std::size_t>(block_begin_[static_cast<std::size_t>(block)]);
    const auto last = static_cast<std::size_t>(block_begin_[static_cast<std::size_t>(block) + 1]);
    counts.resize((last - first) * parts);
    count_cluster_block(block, counts, threads);
    for (std::size_t cluster = first; cluster < last; ++cluster) {
      const auto begin = static_cast<std::size_t>(cluster_begin_[cluster]), end = static_cast<std::size_t>(cluster_begin_[cluster + 1]);
      std::fill(weights.begin(), weights.end(), 0);
      for (std::size_t i = begin; i < end; ++i) add_weights(static_cast<std::int64_t>(members_[i]), weights.data());
      const int part = best_part(counts.data() + (cluster - first) * parts, weights.data(), -1);
      add_load(part, weights.data(), 1);
      for (std::size_t i = begin; i < end; ++i) part_[static_cast<std::size_t>(members_[i])] = static_cast<std::uint16_t>(part);
    }
  }
}

template <class Label>
void Assigner<Label>::place_nodes(std::int64_t begin, std::int64_t end, Place place, int threads) {
  check_span(begin, end, nodes_);
  const auto parts = static_cast<std::size_t>(settings_.parts);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(block_) * parts), weights(settings_.constraints.size());
  for (std::int64_t block = begin; block < end; block += block_) {
    const std::int64_t count = std::min(block_, end - block);
    parallel_for(threads, count, kGrain, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) {
        std::int64_t* const own = counts.data() + static_cast<std::size_t>(i) * parts;
        std::fill(own, own + parts, 0);
        each_neighbor(
            block + i, [&](std::size_t next) { __builtin_prefetch(&part_[next]); },
            [&](std::size_t neighbor) {
              if (part_[neighbor] != kNowhere) ++own[part_[neighbor]];
            });
      }
    });
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint16_t& part = part_[static_cast<std::size_t>(block + i)];
      std::fill(weights.begin(), weights.end(), 0);
      add_weights(block + i, weights.data());
      const int stay = place == Place::most ? part : -1;
      if (stay == kNowhere) throw std::invalid_argument("refine: node " + std::to_string(block + i) + " was not placed before");
      if (stay >= 0) add_load(stay, weights.data(), -1);
      part = static_cast<std::uint16_t>(best_part(counts.data() + static_cast<std::size_t>(i) * parts, weights.data(), stay));
      add_load(part, weights.data(), 1);
    }
  }
}

template <class Label>
void Assigner<Label>::stream(std::int64_t begin, std::int64_t end, int threads) {
  if (begin == 0) std::fill(loads_.begin(), loads_.end(), 0);
  place_nodes(begin, end, Place::score, threads);
}

template <class Label>
void Assigner<Label>::refine(std::int64_t begin, std::int64_t end, int threads) {
  place_nodes(begin, end, Place::most, threads);
}

template class Assigner<std::uint32_t>;
template class Assigner<std::uint64_t>;

}  // namespace khop
