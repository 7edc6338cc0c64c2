// A radix sort of one and a half digits: edges are first dealt to blocks of consecutive destinations, straight into the output
// arrays, then every block is counted and sorted from a copy that fits in the cache. Both steps keep the input order, so the
// whole is stable; a thread takes consecutive edges, then consecutive blocks, so the result does not depend on their number.
#include "build_csc.h"

#include "memory.h"
#include "parallel.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

namespace khop {
namespace {

constexpr std::int64_t kBlocks = 2048;  // as many open output lines as the second-level cache holds
constexpr int kMaxShift = 16;           // a destination within its block is kept in 16 bits
constexpr std::int64_t kPartEdges = 1 << 16;

// Where each edge came from, kept beside it.
class InputPositions {
 public:
  explicit InputPositions(std::span<std::int64_t> order) : order_(order) {}
  void set(std::int64_t place, std::int64_t edge) { order_[place] = edge; }

  // A block's positions, while the block is sorted.
  class Copy {
   public:
    explicit Copy(std::int64_t most) : copy_(std::make_unique_for_overwrite<std::int64_t[]>(most)) {}
    void take(const InputPositions& from, std::int64_t begin, std::int64_t count) { std::copy_n(from.order_.data() + begin, count, copy_.get()); }
    void put(std::int64_t at, InputPositions& into, std::int64_t place) const { into.order_[place] = copy_[at]; }

   private:
    std::unique_ptr<std::int64_t[]> copy_;
  };

 private:
  std::span<std::int64_t> order_;
};

// The same interface for callers that do not ask.
struct NoPositions {
  void set(std::int64_t, std::int64_t) {}
  struct Copy {
    explicit Copy(std::int64_t) {}
    void take(const NoPositions&, std::int64_t, std::int64_t) {}
    void put(std::int64_t, NoPositions&, std::int64_t) const {}
  };
};

template <class Id, class Index, class Positions>
class Builder {
 public:
  Builder(EdgeList<Id> edges, std::int64_t num_sources, std::span<std::int64_t> indptr, std::span<Index> indices,
          Positions positions, int threads)
      : edges_(edges), num_sources_(num_sources), num_destinations_(static_cast<std::int64_t>(indptr.size()) - 1),
        num_edges_(static_cast<std::int64_t>(edges.sources.size())), indptr_(indptr), indices_(indices), positions_(positions),
        parts_(parts_for(threads, num_edges_, kPartEdges)),
        shift_(block_shift(num_destinations_)),
        blocks_((num_destinations_ >> shift_) + 1), next_(parts_ * blocks_), outside_(parts_),
        within_(static_cast<std::size_t>(num_edges_)), block_begin_(blocks_ + 1) {}

  OutsideIds run() {
    parallel_parts(parts_, [this](int part) { count(part); });
    if (const OutsideIds outside = first_outside(); outside.destination >= 0) return outside;
    number();
    parallel_parts(parts_, [this](int part) { deal(part); });
    if (const OutsideIds outside = first_outside(); outside.source >= 0) return outside;
    parallel_parts(parts_, [this](int part) { sort_blocks(part); });
    indptr_.back() = num_edges_;
    return {};
  }

 private:
  std::int64_t* next(int part) { return next_.data() + part * blocks_; }

  void count(int part) {
    std::int64_t* counts = next(part);
    for (std::int64_t edge = part_begin(num_edges_, part, parts_); edge < part_begin(num_edges_, part + 1, parts_); ++edge) {
      const Id destination = edges_.destinations[edge];
      if (destination < 0 || destination >= num_destinations_) {
        outside_[part].destination = edge;
        return;
      }
      ++counts[destination >> shift_];
    }
  }

  // Counts become the places where each part's edges of each block begin.
  void number() {
    std::int64_t begin = 0;
    for (std::int64_t block = 0; block < blocks_; ++block) {
      block_begin_[block] = begin;
      for (int part = 0; part < parts_; ++part) {
        begin += std::exchange(next(part)[block], begin);
      }
    }
    block_begin_[blocks_] = begin;
  }

  void deal(int part) {
    std::int64_t* places = next(part);
    const std::int64_t mask = (std::int64_t{1} << shift_) - 1;
    for (std::int64_t edge = part_begin(num_edges_, part, parts_); edge < part_begin(num_edges_, part + 1, parts_); ++edge) {
      const Id source = edges_.sources[edge], destination = edges_.destinations[edge];
      if (source < 0 || source >= num_sources_) {
        outside_[part].source = edge;
        return;
      }
      const std::int64_t place = places[destination >> shift_]++;
      within_[place] = static_cast<std::uint16_t>(destination & mask);
      indices_[place] = static_cast<Index>(source);
      positions_.set(place, edge);
    }
  }

  // The first block of a part, when edges are split as evenly as whole blocks allow.
  std::int64_t first_block(int part) const {
    if (part == parts_) return blocks_;
    return std::lower_bound(block_begin_.begin(), block_begin_.end() - 1, part_begin(num_edges_, part, parts_)) -
           block_begin_.begin();
  }

  void sort_blocks(int part) {
    const std::int64_t begin = part == 0 ? 0 : first_block(part), end = first_block(part + 1);
    std::int64_t fullest = 0;
    for (std::int64_t block = begin; block < end; ++block) {
      fullest = std::max(fullest, block_begin_[block + 1] - block_begin_[block]);
    }
    const auto indices = std::make_unique_for_overwrite<Index[]>(fullest);
    typename Positions::Copy positions(fullest);
    std::vector<std::int64_t> places(std::size_t{1} << shift_);
    for (std::int64_t block = begin; block < end; ++block) sort_block(block, indices.get(), positions, places);
  }

  void sort_block(std::int64_t block, Index* indices, typename Positions::Copy& positions, std::vector<std::int64_t>& places) {
    const std::int64_t begin = block_begin_[block], count = block_begin_[block + 1] - begin;
    const std::int64_t first_row = block << shift_;
    const std::int64_t rows = std::min(num_destinations_ - first_row, std::int64_t{1} << shift_);
    const std::uint16_t* within = within_.data() + begin;
    std::fill_n(places.begin(), rows, 0);
    for (std::int64_t i = 0; i < count; ++i) ++places[within[i]];
    std::int64_t place = begin;
    for (std::int64_t row = 0; row < rows; ++row) {
      indptr_[first_row + row] = place;
      place += std::exchange(places[row], place);
    }
    std::copy_n(indices_.data() + begin, count, indices);
    positions.take(positions_, begin, count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t to = places[within[i]]++;
      indices_[to] = indices[i];
      positions.put(i, positions_, to);
    }
  }

  OutsideIds first_outside() const {
    OutsideIds first;
    for (const OutsideIds& outside : outside_) {
      if (first.source < 0) first.source = outside.source;
      if (first.destination < 0) first.destination = outside.destination;
    }
    return first;
  }

  const EdgeList<Id> edges_;
  const std::int64_t num_sources_, num_destinations_, num_edges_;
  const std::span<std::int64_t> indptr_;
  const std::span<Index> indices_;
  Positions positions_;
  const int parts_, shift_;
  const std::int64_t blocks_;
  std::vector<std::int64_t> next_;  // per part and block: first a count, then the next free place
  std::vector<OutsideIds> outside_;  // per part
  ZeroedArray<std::uint16_t> within_;  // per dealt edge: its destination, counted from the block's first
  std::vector<std::int64_t> block_begin_;
};

}  // namespace

int block_shift(std::int64_t num_destinations) {
  return std::min<int>(kMaxShift, std::bit_width(static_cast<std::uint64_t>(num_destinations / kBlocks)));
}

template <class Id, class Index>
OutsideIds build_csc(EdgeList<Id> edges, std::int64_t num_sources, std::span<std::int64_t> indptr, std::span<Index> indices,
                     std::span<std::int64_t> order, int threads) {
  return Builder<Id, Index, InputPositions>(edges, num_sources, indptr, indices, InputPositions(order), threads).run();
}

template <class Id, class Index>
OutsideIds build_csc(EdgeList<Id> edges, std::int64_t num_sources, std::span<std::int64_t> indptr, std::span<Index> indices,
                     int threads) {
  return Builder<Id, Index, NoPositions>(edges, num_sources, indptr, indices, NoPositions(), threads).run();
}

#define KHOP_BUILD_CSC(Id, Index)                                                                                            \
  template OutsideIds build_csc(EdgeList<Id>, std::int64_t, std::span<std::int64_t>, std::span<Index>, std::span<std::int64_t>, \
                                int);                                                                                         \
  template OutsideIds build_csc(EdgeList<Id>, std::int64_t, std::span<std::int64_t>, std::span<Index>, int);
KHOP_BUILD_CSC(std::int32_t, std::int32_t)
KHOP_BUILD_CSC(std::int64_t, std::int32_t)
KHOP_BUILD_CSC(std::int64_t, std::int64_t)

}  // namespace khop
