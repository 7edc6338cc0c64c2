// Gustavson's sparse product (1978) with a row of counters per thread. A counter stores its row, so counters are not cleared
// between rows. An index is added to the result when its count reaches the minimum.
#include "cooccurrences.h"

#include "parallel.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

namespace khop {
namespace {

constexpr std::int64_t kPartEdges = 1 << 12;
constexpr int kPartsPerThread = 64;   // the cost of rows varies widely
constexpr std::int64_t kRowsAhead = 8;
constexpr std::int64_t kAhead = 16;   // prefetched counters
constexpr std::uint32_t kMost = std::numeric_limits<std::int32_t>::max();

// A pool of scratch memory, at most one per running thread.
template <class T>
class Shared {
 public:
  template <class Make>
  T take(Make&& make) {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        T taken = std::move(free_.back());
        free_.pop_back();
        return taken;
      }
    }
    return make();
  }
  void give(T given) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(given));
  }

 private:
  std::mutex mutex_;
  std::vector<T> free_;
};

}  // namespace

template <class Index>
Cooccurrences<Index>::Cooccurrences(Csc<Index> there, Csc<Index> back, std::int64_t min_count, int threads)
    : there_(there), back_(back), min_count_(static_cast<std::uint32_t>(std::min<std::int64_t>(min_count, kMost))),
      indptr_(there.indptr.size()), parts_(parts_for_threads(threads)) {
  Shared<ZeroedArray<Counter>> shared;
  parallel_parts(threads, static_cast<int>(parts_.size()), [&](int part) {
    auto counters = shared.take([&] { return ZeroedArray<Counter>(static_cast<std::size_t>(there_.rows())); });
    collect(parts_[part], counters.data());
    shared.give(std::move(counters));
  });
  std::partial_sum(indptr_.begin(), indptr_.end(), indptr_.begin());
}

// Consecutive rows, with edges split as evenly over parts as whole rows allow.
template <class Index>
auto Cooccurrences<Index>::parts_for_threads(int threads) const -> std::vector<Part> {
  const auto edges = static_cast<std::int64_t>(there_.indices.size());
  const int count = threads > 1 ? parts_for(kPartsPerThread * threads, edges, kPartEdges) : 1;
  std::vector<Part> parts(static_cast<std::size_t>(count));
  std::int64_t row = 0;
  for (int part = 0; part < count; ++part) {
    parts[part].first_row = row;
    const auto next = std::lower_bound(there_.indptr.begin() + row, there_.indptr.end() - 1, part_begin(edges, part + 1, count));
    row = part + 1 == count ? there_.rows() : next - there_.indptr.begin();
    parts[part].last_row = row;
  }
  return parts;
}

template <class Index>
void Cooccurrences<Index>::collect(Part& part, Counter* counters) {
  const std::int64_t last_edge = there_.indptr[part.last_row];
  for (std::int64_t row = part.first_row; row < part.last_row; ++row) {
    const auto begin = static_cast<std::ptrdiff_t>(part.indices.size());
    for (std::int64_t edge = there_.indptr[row]; edge < there_.indptr[row + 1]; ++edge) {
      // Rows of `back` are in random order: prefetch first their begins, then their entries.
      if (edge + 2 * kRowsAhead < last_edge) __builtin_prefetch(&back_.indptr[there_.indices[edge + 2 * kRowsAhead]]);
      if (edge + kRowsAhead < last_edge) {
        __builtin_prefetch(back_.indices.data() + back_.indptr[there_.indices[edge + kRowsAhead]]);
      }
      count_from(there_.indices[edge], row, part, counters);
    }
    std::sort(part.indices.begin() + begin, part.indices.end());
    for (auto at = begin; at < static_cast<std::ptrdiff_t>(part.indices.size()); ++at) {
      part.counts.push_back(static_cast<std::int32_t>(counters[part.indices[at]].count));
    }
    indptr_[row + 1] = static_cast<std::int64_t>(part.indices.size()) - begin;
  }
}

// Counts one path from `middle` to each of its entries.
template <class Index>
void Cooccurrences<Index>::count_from(std::int64_t middle, std::int64_t row, Part& part, Counter* counters) const {
  const std::int64_t end = back_.indptr[middle + 1];
  const auto own = static_cast<std::make_unsigned_t<Index>>(row + 1);
  for (std::int64_t edge = back_.indptr[middle]; edge < end; ++edge) {
    if (edge + kAhead < end) __builtin_prefetch(counters + back_.indices[edge + kAhead], 1);
    const Index index = back_.indices[edge];
    Counter& counter = counters[index];
    if (counter.row != own) counter = {own, 0};
    if (counter.count == kMost) continue;
    if (++counter.count == min_count_ && index != row) part.indices.push_back(index);
  }
}

template <class Index>
void Cooccurrences<Index>::move_into(std::span<std::int64_t> indptr, Index* indices, std::int32_t* counts) {
  std::copy(indptr_.begin(), indptr_.end(), indptr.begin());
  for (Part& part : parts_) {
    indices = std::copy(part.indices.begin(), part.indices.end(), indices);
    counts = std::copy(part.counts.begin(), part.counts.end(), counts);
    part = {};  // frees the pairs, so that they are not in memory twice
  }
}

template class Cooccurrences<std::int32_t>;
template class Cooccurrences<std::int64_t>;

}  // namespace khop
