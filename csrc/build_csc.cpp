// A radix sort in two steps: edges are distributed to blocks of consecutive destinations, in the output arrays; then every block
// is sorted by counting from a copy that fits in the cache. Both steps keep the input order, so the sort is stable. Threads take
// consecutive edges, then consecutive blocks, so the result does not depend on their number. Many edges are sorted in two passes
// over half of them each, which halves the temporary array. If most edges of a block have the same destination, they are moved
// within the output, and only the others are copied.
#include "build_csc.h"

#include "memory.h"
#include "parallel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace khop {
namespace {

constexpr std::int64_t kBlocks = 2048;  // as many open output lines as fit in the L2 cache
constexpr int kMaxShift = 16;           // a destination within its block has 16 bits
constexpr std::int64_t kPartEdges = 1 << 16;
constexpr std::int64_t kPassEdges = 1 << 20;  // more are sorted in two passes

// Memory that loses its content when it grows.
template <class T>
class Room {
 public:
  T* for_count(std::int64_t count) {
    if (count > count_) {
      data_.reset();
      data_ = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(count));
      count_ = count;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<T[]> data_;
  std::int64_t count_ = 0;
};

// Stores the input position of each edge.
class InputPositions {
 public:
  explicit InputPositions(std::span<std::int64_t> order) : order_(order.data()) {}
  void set(std::int64_t place, std::int64_t edge) { order_[place] = edge; }
  void move(std::int64_t from, std::int64_t to, std::int64_t count) { std::memmove(order_ + to, order_ + from, 8 * count); }

  // Positions of a block's edges, while the block is sorted.
  class Copy {
   public:
    void reserve(std::int64_t count) { copy_ = room_.for_count(count); }
    void take(const InputPositions& from, std::int64_t place, std::int64_t at) { copy_[at] = from.order_[place]; }
    void put(std::int64_t at, InputPositions& into, std::int64_t place) const { into.order_[place] = copy_[at]; }

   private:
    Room<std::int64_t> room_;
    std::int64_t* copy_ = nullptr;
  };

 private:
  std::int64_t* order_;
};

// The same interface for callers that do not need positions.
struct NoPositions {
  void set(std::int64_t, std::int64_t) {}
  void move(std::int64_t, std::int64_t, std::int64_t) {}
  struct Copy {
    void reserve(std::int64_t) {}
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
        block_begin_(blocks_ + 1) {}

  OutsideIds run() {
    parallel_parts(parts_, [this](int part) { count(part); });
    if (const OutsideIds outside = first_outside(); outside.destination >= 0) return outside;
    number();
    const std::int64_t half = num_edges_ > kPassEdges ? block_of_edge(num_edges_ / 2) : blocks_;
    ZeroedArray<std::uint16_t> within(static_cast<std::size_t>(std::max(block_begin_[half], num_edges_ - block_begin_[half])));
    within_ = within.data();
    for (const auto& [first, last] : {std::pair{std::int64_t{0}, half}, std::pair{half, blocks_}}) {
      if (first == last && first > 0) break;
      first_ = first, last_ = last;
      const bool is_whole = first == 0 && last == blocks_;
      parallel_parts(parts_, [&](int part) { is_whole ? deal<true>(part) : deal<false>(part); });
      if (const OutsideIds outside = first_outside(); outside.source >= 0) return outside;
      parallel_parts(parts_, [this](int part) { sort_blocks(part); });
    }
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

  // Counts become the positions at which each part's edges of each block begin.
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

  // The first block that begins at an edge, or after it.
  std::int64_t block_of_edge(std::int64_t edge) const {
    return std::lower_bound(block_begin_.begin(), block_begin_.end() - 1, edge) - block_begin_.begin();
  }

  // Moves the edges of this pass to their blocks. `whole`: there is only one pass.
  template <bool whole>
  void deal(int part) {
    std::int64_t* places = next(part);
    std::uint16_t* const within = within_ - block_begin_[first_];
    const std::int64_t mask = (std::int64_t{1} << shift_) - 1;
    for (std::int64_t edge = part_begin(num_edges_, part, parts_); edge < part_begin(num_edges_, part + 1, parts_); ++edge) {
      const Id source = edges_.sources[edge], destination = edges_.destinations[edge];
      if (source < 0 || source >= num_sources_) {
        outside_[part].source = edge;
        return;
      }
      const std::int64_t block = destination >> shift_;
      if (!whole && (block < first_ || block >= last_)) continue;
      const std::int64_t place = places[block]++;
      within[place] = static_cast<std::uint16_t>(destination & mask);
      indices_[place] = static_cast<Index>(source);
      positions_.set(place, edge);
    }
  }

  // The first block of a part, with the edges of this pass split as evenly as whole blocks allow.
  std::int64_t first_block(int part) const {
    if (part == 0) return first_;
    if (part == parts_) return last_;
    const std::int64_t begin = block_begin_[first_], count = block_begin_[last_] - begin;
    return std::clamp(block_of_edge(begin + part_begin(count, part, parts_)), first_, last_);
  }

  struct Scratch {
    explicit Scratch(std::size_t rows) : places(rows) {}
    std::vector<std::int64_t> places;  // by row of a block: first a count, then the next free position
    Room<Index> indices;
    typename Positions::Copy positions;
  };

  void sort_blocks(int part) {
    Scratch scratch(std::size_t{1} << shift_);
    for (std::int64_t block = first_block(part), end = first_block(part + 1); block < end; ++block) sort_block(block, scratch);
  }

  void sort_block(std::int64_t block, Scratch& scratch) {
    const std::int64_t begin = block_begin_[block], count = block_begin_[block + 1] - begin;
    const std::int64_t first_row = block << shift_;
    const std::int64_t rows = std::min(num_destinations_ - first_row, std::int64_t{1} << shift_);
    std::int64_t* const places = scratch.places.data();
    std::uint16_t* const within = within_ + (begin - block_begin_[first_]);
    std::fill_n(places, rows, 0);
    for (std::int64_t i = 0; i < count; ++i) ++places[within[i]];
    const std::int64_t hub = count > kPartEdges ? std::max_element(places, places + rows) - places : 0;
    const std::int64_t of_hub = count > 0 ? places[hub] : 0;
    std::int64_t place = begin;
    for (std::int64_t row = 0; row < rows; ++row) {
      indptr_[first_row + row] = place;
      place += std::exchange(places[row], place);
    }
    if (count <= kPartEdges || of_hub < count / 2) {
      sort_from_copy(begin, count, within, scratch);
    } else {
      const std::int64_t others = move_hub(begin, count, within, static_cast<std::uint16_t>(hub), of_hub, scratch);
      put_back(others, within, scratch);
    }
  }

  void sort_from_copy(std::int64_t begin, std::int64_t count, const std::uint16_t* within, Scratch& scratch) {
    Index* const indices = scratch.indices.for_count(count);
    scratch.positions.reserve(count);
    std::copy_n(indices_.data() + begin, count, indices);
    for (std::int64_t i = 0; i < count; ++i) scratch.positions.take(positions_, begin + i, i);
    put_back(count, within, scratch);
  }

  void put_back(std::int64_t count, const std::uint16_t* within, Scratch& scratch) {
    const Index* const indices = scratch.indices.for_count(count);
    std::int64_t* const places = scratch.places.data();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t to = places[within[i]]++;
      indices_[to] = indices[i];
      scratch.positions.put(i, positions_, to);
    }
  }

  // Moves the edges of one destination to their positions, and copies the others with their rows. Returns the number of copies.
  std::int64_t move_hub(std::int64_t begin, std::int64_t count, std::uint16_t* within, std::uint16_t hub, std::int64_t of_hub,
                        Scratch& scratch) {
    Index* const indices = scratch.indices.for_count(count - of_hub);
    scratch.positions.reserve(count - of_hub);
    std::int64_t kept = begin, others = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t from = begin + i;
      if (within[i] == hub) {
        indices_[kept] = indices_[from];
        positions_.move(from, kept++, 1);
      } else {
        indices[others] = indices_[from];
        scratch.positions.take(positions_, from, others);
        within[others++] = within[i];
      }
    }
    const std::int64_t to = scratch.places[hub];
    std::memmove(indices_.data() + to, indices_.data() + begin, static_cast<std::size_t>(of_hub) * sizeof(Index));
    positions_.move(begin, to, of_hub);
    return others;
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
  std::vector<std::int64_t> next_;  // per part and block: first a count, then the next free position
  std::vector<OutsideIds> outside_;  // per part
  std::uint16_t* within_ = nullptr;  // per edge of this pass: its destination, counted from the block's first
  std::int64_t first_ = 0, last_ = 0;  // blocks of this pass
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
