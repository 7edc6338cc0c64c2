#include "sample_smallest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "checks.h"
#include "draw_alone.h"
#include "hop_rows.h"
#include "parallel.h"
#include "random.h"
#include "simd.h"

namespace khop {
namespace {

constexpr std::int64_t kRowsPerThread = 128;  // fewer are not worth a thread
constexpr std::int64_t kBlock = 16;           // rows whose entries are prefetched
constexpr std::int64_t kMostCounted = 40;     // with at most this many candidates, ranks are counted by comparing all pairs
constexpr std::uint64_t kEverything = std::numeric_limits<std::uint64_t>::max();

// An entry that may be among the smallest of its row.
struct Candidate {
  std::uint64_t key;
  std::int64_t at;  // position in the row
};

using Room = std::vector<Candidate>;  // grows to the longest row

inline Candidate* room_for(Room& room, std::int64_t degree) {
  if (static_cast<std::int64_t>(room.size()) < degree) room.resize(static_cast<std::size_t>(degree));
  return room.data();
}

// The keys of sources, several at a time.
struct KeysByHash {
  template <class Id>
  static KHOP_INLINE void run(const Id* ids, std::int64_t count, SourceNumbers numbers, std::uint64_t* keys) {
    const auto id = [&](std::int64_t at) { return static_cast<std::uint64_t>(static_cast<std::int64_t>(ids[at])); };
    if (numbers.period <= 1) {
      for (std::int64_t at = 0; at < count; ++at) keys[at] = mix64(numbers.base ^ id(at));
      return;
    }
    for (std::int64_t at = 0; at < count; ++at) {
      const std::uint64_t offset = ((mix64(id(at)) >> 32) * numbers.period) >> 32;
      keys[at] = mix64((offset >= numbers.later_from ? numbers.later_base : numbers.base) ^ id(at));
    }
  }
};

template <class Index>
class BySource {
 public:
  BySource(const Csc<Index>& graph, const KeysOfSources<Index>& keys) : graph_(graph), keys_(keys), numbers_(keys.numbers) {}

  void fetch(std::int64_t begin, std::int64_t degree) const {
    constexpr std::int64_t most = 4;  // cache lines; the hardware prefetches the rest of longer rows
    const auto lines = [&](const auto* from) {
      const std::int64_t per_line = 64 / static_cast<std::int64_t>(sizeof(*from));
      for (std::int64_t line = 0; line < most && line * per_line < degree; ++line) __builtin_prefetch(from + begin + line * per_line);
    };
    keys_.source_ids.empty() ? lines(graph_.indices.data()) : lines(keys_.source_ids.data());
  }

  // Writes candidates of a row with more than `fanout` entries to the room, in row order: at least `fanout`, and with each entry all
  // smaller ones. Returns their number.
  std::int64_t collect(std::int64_t node, const Row& row, std::int64_t fanout, Room& room) {
    Candidate* const out = room_for(room, row.degree);
    if (!keys_.has_parallel.empty() && keys_.has_parallel[static_cast<std::size_t>(node)] != 0) return collect_parallel(row, out);
    // Keys are uniform over 64 bits, so a limit that passes slightly more than `fanout` entries rarely passes too few. It does not
    // affect the result.
    const double wanted = static_cast<double>(fanout), passing = wanted + 2 * std::sqrt(wanted) + 1;
    const double share = passing / static_cast<double>(row.degree);
    const auto limit = share < 0.9 ? static_cast<std::uint64_t>(share * 0x1p64) : kEverything;
    const std::uint64_t* const keys = keys_of(row);
    const std::int64_t count = collect_below(keys, row.degree, limit, out);
    return count < fanout ? collect_below(keys, row.degree, kEverything, out) : count;
  }

  bool is_before(std::int64_t begin, const Candidate& one, const Candidate& other) const {
    if (one.key != other.key) return one.key < other.key;
    const std::int64_t first = id(begin + one.at), second = id(begin + other.at);
    return first != second ? first < second : one.at < other.at;
  }

 private:
  std::int64_t id(std::int64_t edge) const {
    return keys_.source_ids.empty() ? static_cast<std::int64_t>(graph_.indices.data()[edge]) : keys_.source_ids.data()[edge];
  }

  // The keys of a row's sources.
  const std::uint64_t* keys_of(const Row& row) {
    if (static_cast<std::int64_t>(of_row_.size()) < row.degree) of_row_.resize(static_cast<std::size_t>(row.degree));
    if (keys_.source_ids.empty()) {
      run_widest<KeysByHash>(graph_.indices.data() + row.begin, row.degree, numbers_, of_row_.data());
    } else {
      run_widest<KeysByHash>(keys_.source_ids.data() + row.begin, row.degree, numbers_, of_row_.data());
    }
    return of_row_.data();
  }

  static std::int64_t collect_below(const std::uint64_t* keys, std::int64_t degree, std::uint64_t limit, Candidate* out) {
    std::int64_t count = 0;
    for (std::int64_t at = 0; at < degree; ++at) {
      out[count] = {keys[at], at};
      count += keys[at] <= limit;
    }
    return count;
  }

  // Every entry, with numbers for entries that share a source.
  std::int64_t collect_parallel(const Row& row, Candidate* out) {
    const std::uint64_t* const keys = keys_of(row);
    by_id_.clear();
    for (std::int64_t at = 0; at < row.degree; ++at) by_id_.emplace_back(id(row.begin + at), at);
    std::ranges::sort(by_id_);
    std::uint64_t number = 0;
    for (std::size_t place = 0; place < by_id_.size(); ++place) {
      const auto& [source, at] = by_id_[place];
      number = place > 0 && by_id_[place - 1].first == source ? number + 1 : 0;
      out[at] = {number == 0 ? keys[at] : mix64(keys[at] ^ number), at};
    }
    return row.degree;
  }

  const Csc<Index>& graph_;
  const KeysOfSources<Index>& keys_;
  const SourceNumbers numbers_;
  std::vector<std::uint64_t> of_row_;
  std::vector<std::pair<std::int64_t, std::int64_t>> by_id_;
};

class ByEdge {
 public:
  explicit ByEdge(const KeysOfEdges& keys) : keys_(keys.keys.data()) {}

  void fetch(std::int64_t begin, std::int64_t degree) const {
    constexpr std::int64_t most = 8, per_line = 8;
    for (std::int64_t line = 0; line < most && line * per_line < degree; ++line) __builtin_prefetch(keys_ + begin + line * per_line);
  }

  std::int64_t collect(std::int64_t, const Row& row, std::int64_t, Room& room) const {
    Candidate* const out = room_for(room, row.degree);
    for (std::int64_t at = 0; at < row.degree; ++at) {
      out[at] = {static_cast<std::uint64_t>(keys_[row.begin + at]) ^ (std::uint64_t{1} << 63), at};
    }
    return row.degree;
  }

  static bool is_before(std::int64_t, const Candidate& one, const Candidate& other) {
    return one.key != other.key ? one.key < other.key : one.at < other.at;
  }

 private:
  const std::int64_t* const keys_;
};

template <class Index, class Order>
class SmallestWalk {
 public:
  SmallestWalk(const Csc<Index>& graph, Order order, const HopRequest& request, const HopOutput<Index>& output)
      : graph_(graph), order_(std::move(order)), request_(request), output_(output), fanout_(request.fanout) {}

  // Processes frontier rows [first, last), whose edges start at `cursor`; returns their end.
  std::int64_t run(std::int64_t first, std::int64_t last, std::int64_t cursor) {
    cursor_ = cursor;
    fetch_rows(first, last);
    fetch_rows(first + kBlock, last);
    fetch_entries(0, first, last);
    for (std::int64_t at = first, turn = 0; at < last; at += kBlock, turn ^= 1) {
      fetch_rows(at + 2 * kBlock, last);
      fetch_entries(turn ^ 1, at + kBlock, last);
      for (std::int64_t i = at; i < std::min(last, at + kBlock); ++i) emit(i, rows_[turn][i - at]);
    }
    return cursor_;
  }

 private:
  // Always inlined, because GCC removes calls of a function that only prefetches.
  KHOP_INLINE void fetch_rows(std::int64_t first, std::int64_t last) const {
    if (!request_.ranges.empty()) return;
    for (std::int64_t i = first; i < std::min(last, first + kBlock); ++i) {
      const std::int64_t node = request_.nodes.data()[i];
      __builtin_prefetch(graph_.indptr.data() + node);
      __builtin_prefetch(graph_.indptr.data() + node + 1);
    }
  }

  KHOP_INLINE void fetch_entries(std::int64_t turn, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < std::min(last, first + kBlock); ++i) {
      const Row row = rows_[turn][i - first] = row_at(graph_, request_, i);
      if (takes_whole_row(request_, row.degree)) {
        if (row.degree > 0) __builtin_prefetch(graph_.indices.data() + row.begin);
      } else {
        order_.fetch(row.begin, row.degree);
      }
    }
  }

  void emit(std::int64_t i, const Row& row) {
    output_.offsets[i] = cursor_;
    if (takes_whole_row(request_, row.degree)) {
      std::copy_n(graph_.indices.data() + row.begin, row.degree, output_.nodes + cursor_);
      if (output_.edges != nullptr) std::iota(output_.edges + cursor_, output_.edges + cursor_ + row.degree, row.begin);
      cursor_ += row.degree;
      return;
    }
    if (fanout_ == 0) return;
    const std::int64_t count = order_.collect(request_.nodes.data()[i], row, fanout_, room_);
    if (count > fanout_) select(row.begin, count);
    for (std::int64_t slot = 0; slot < fanout_; ++slot) {
      const std::int64_t edge = row.begin + room_.data()[slot].at;
      output_.nodes[cursor_] = graph_.indices.data()[edge];
      if (output_.edges != nullptr) output_.edges[cursor_] = edge;
      ++cursor_;
    }
  }

  // Moves the smallest candidates to the front, in row order.
  void select(std::int64_t begin, std::int64_t count) {
    if (count <= kMostCounted && select_by_counting(count)) return;
    const auto before = [&](const Candidate& one, const Candidate& other) { return order_.is_before(begin, one, other); };
    Candidate* const found = room_.data();
    std::nth_element(found, found + fanout_, found + count, before);
    std::ranges::sort(found, found + fanout_, {}, &Candidate::at);
  }

  // Keeps candidates with fewer than `fanout` smaller ones. Returns false, without effect, if ties leave too many.
  bool select_by_counting(std::int64_t count) {
    Candidate* const found = room_.data();
    std::int64_t smaller[kMostCounted];
    for (std::int64_t one = 0; one < count; ++one) {
      const std::uint64_t key = found[one].key;
      std::int64_t below = 0;
      for (std::int64_t other = 0; other < count; ++other) below += found[other].key < key;
      smaller[one] = below;
    }
    if (std::count_if(smaller, smaller + count, [&](std::int64_t below) { return below < fanout_; }) != fanout_) return false;
    std::int64_t kept = 0;
    for (std::int64_t one = 0; one < count; ++one) {
      found[kept] = found[one];
      kept += smaller[one] < fanout_;
    }
    return true;
  }

  const Csc<Index>& graph_;
  Order order_;
  const HopRequest& request_;
  const HopOutput<Index>& output_;
  const std::int64_t fanout_;
  std::int64_t cursor_ = 0;
  Row rows_[2][kBlock];
  Room room_;
};

template <class Index, class Order>
std::int64_t walk(const Csc<Index>& graph, const Order& order, const HopRequest& request, const HopOutput<Index>& output) {
  const auto frontier = static_cast<std::int64_t>(request.nodes.size());
  if (request.fanout == 0) {  // an edge type that the hop skips: the graph is not read
    std::fill_n(output.offsets, frontier + 1, 0);
    return 0;
  }
  const int parts = parts_for(request.threads, frontier, kRowsPerThread);
  std::vector<std::int64_t> ends(static_cast<std::size_t>(parts) + 1, 0);  // end of each part's edges, after a leading 0
  const auto first_row = [&](int part) { return part_begin(frontier, part, parts); };
  parallel_parts(parts - 1, [&](int part) {
    ends[static_cast<std::size_t>(part) + 1] = count_edges(graph, request, first_row(part), first_row(part + 1));
  });
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  parallel_parts(parts, [&](int part) {
    SmallestWalk<Index, Order> of_part(graph, order, request, output);
    const std::int64_t end = of_part.run(first_row(part), first_row(part + 1), ends[static_cast<std::size_t>(part)]);
    if (part == parts - 1) output.offsets[frontier] = end;
  });
  return output.offsets[frontier];
}

}  // namespace

template <class Index>
std::int64_t sample_smallest(const Csc<Index>& graph, const KeysOfSources<Index>& keys, const HopRequest& request,
                             const HopOutput<Index>& output) {
  if (!keys.source_ids.empty()) check_size(keys.source_ids.size(), graph.indices.size(), "source_ids");
  if (!keys.has_parallel.empty()) check_size(keys.has_parallel.size(), static_cast<std::size_t>(graph.rows()), "has_parallel");
  return walk(graph, BySource<Index>(graph, keys), request, output);
}

template <class Index>
std::int64_t sample_smallest(const Csc<Index>& graph, const KeysOfEdges& keys, const HopRequest& request,
                             const HopOutput<Index>& output) {
  check_size(keys.keys.size(), graph.indices.size(), "keys");
  return walk(graph, ByEdge(keys), request, output);
}

template <class Index>
std::int64_t find_parallel_rows(const Csc<Index>& graph, std::uint8_t* rows, int threads) {
  constexpr std::int64_t grain = 1 << 12, few = 16;
  check_rows(graph.indptr, static_cast<std::int64_t>(graph.indices.size()));
  parallel_for(threads, graph.rows(), grain, [&](std::int64_t first, std::int64_t last) {
    PickSet seen;
    const auto shares = [&](std::int64_t begin, std::int64_t end) {
      if (end - begin <= few) {
        for (std::int64_t one = begin + 1; one < end; ++one) {
          const auto before = graph.indices.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(one - begin));
          if (std::ranges::find(before, graph.indices.data()[one]) != before.end()) return true;
        }
        return false;
      }
      seen.reset(static_cast<std::size_t>(end - begin));
      for (std::int64_t at = begin; at < end; ++at) {
        if (!seen.insert(static_cast<std::uint64_t>(graph.indices.data()[at]))) return true;
      }
      return false;
    };
    for (std::int64_t row = first; row < last; ++row) rows[row] = shares(graph.indptr.data()[row], graph.indptr.data()[row + 1]);
  });
  return std::accumulate(rows, rows + graph.rows(), std::int64_t{0});
}

#define KHOP_SAMPLE_SMALLEST(Index)                                                                                      \
  template std::int64_t sample_smallest(const Csc<Index>&, const KeysOfSources<Index>&, const HopRequest&,             \
                                        const HopOutput<Index>&);                                                      \
  template std::int64_t sample_smallest(const Csc<Index>&, const KeysOfEdges&, const HopRequest&, const HopOutput<Index>&); \
  template std::int64_t find_parallel_rows(const Csc<Index>&, std::uint8_t*, int);

KHOP_SAMPLE_SMALLEST(std::int32_t)
KHOP_SAMPLE_SMALLEST(std::int64_t)

}  // namespace khop
