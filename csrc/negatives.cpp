#include "negatives.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "random.h"

namespace khop {
namespace {

[[noreturn]] void refuse(const char* name, std::int64_t value, std::int64_t limit) {
  throw std::invalid_argument(std::string(name) + " " + std::to_string(value) + ": must be in [0, " + std::to_string(limit) + ")");
}

bool is_below(std::int64_t value, std::int64_t limit) {
  return static_cast<std::uint64_t>(value) < static_cast<std::uint64_t>(limit);
}

// Weights of candidates as intervals on a line: candidate r covers before(r) to before(r + 1).
class Line {
 public:
  explicit Line(const Candidates& candidates) : before_(candidates.weights_before) {}

  std::int64_t before(std::int64_t rank) const {
    if (before_.empty()) return rank;
    if (static_cast<std::uint64_t>(rank) >= before_.size()) refuse("partner", rank, static_cast<std::int64_t>(before_.size()) - 1);
    return before_[static_cast<std::size_t>(rank)];
  }

  // The candidate at a point of the line. Candidates of weight 0 have empty intervals.
  std::int64_t at(std::int64_t point) const {
    if (before_.empty()) return point;
    return std::upper_bound(before_.begin(), before_.end(), point) - before_.begin() - 1;
  }

 private:
  std::span<const std::int64_t> before_;
};

// A source's partners below a limit, removed from the line.
template <class Index>
class Gaps {
 public:
  Gaps(const Line& line, const Partners<Index>& partners, std::int64_t source, std::int64_t limit) : line_(line) {
    if (partners.indptr.empty()) return;
    const auto at = static_cast<std::size_t>(source);
    if (!is_below(source, static_cast<std::int64_t>(partners.indptr.size()) - 1)) {
      refuse("source", source, static_cast<std::int64_t>(partners.indptr.size()) - 1);
    }
    const std::int64_t first = partners.indptr[at], end = partners.indptr[at + 1];
    if (first < 0 || first > end || end > static_cast<std::int64_t>(partners.ranks.size())) {
      throw std::invalid_argument("partners of source " + std::to_string(source) + ": their row is not one of the graph's");
    }
    const auto begin = static_cast<std::size_t>(first);
    const auto row = partners.ranks.subspan(begin, static_cast<std::size_t>(end - first));
    ranks_ = row.first(static_cast<std::size_t>(std::ranges::lower_bound(row, limit) - row.begin()));
    if (!partners.weights_before.empty()) weights_before_ = partners.weights_before.subspan(begin, ranks_.size());
  }

  // The total weight of the partners.
  std::int64_t total() const {
    if (ranks_.empty() || weights_before_.empty()) return static_cast<std::int64_t>(ranks_.size());
    const std::int64_t last = ranks_.back();
    return weights_before_.back() + line_.before(last + 1) - line_.before(last);
  }

  // The point of the line with a weight of `free` before it that is not a partner's.
  std::int64_t point(std::int64_t free) const {
    std::size_t low = 0, high = ranks_.size();  // the number of partners before the point
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (line_.before(ranks_[middle]) - before(middle) > free) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return free + (low < ranks_.size() ? before(low) : total());
  }

 private:
  std::int64_t before(std::size_t partner) const {
    return weights_before_.empty() ? static_cast<std::int64_t>(partner) : weights_before_[partner];
  }

  const Line& line_;
  std::span<const Index> ranks_;
  std::span<const std::int64_t> weights_before_;
};

}  // namespace

template <class Index>
std::int64_t draw_negatives(const Candidates& candidates, const Partners<Index>& partners, const NegativeRequest& request,
                            std::int64_t* ranks) {
  const Line line(candidates);
  for (std::size_t link = 0; link < request.positions.size(); ++link) {
    const std::int64_t limit = request.limits.empty() ? candidates.count : request.limits[link];
    if (!is_below(limit, candidates.count + 1)) refuse("limit", limit, candidates.count + 1);
    const Gaps<Index> gaps(line, partners, request.sources[link], limit);
    const std::int64_t free = line.before(limit) - gaps.total();
    if (free <= 0) return static_cast<std::int64_t>(link);
    RowWords words(request.key, static_cast<std::uint64_t>(request.positions[link]), request.stream);
    const auto range = static_cast<std::uint64_t>(free);
    for (std::int64_t slot = 0; slot < request.per_positive; ++slot) {
      const std::int64_t rank = line.at(gaps.point(static_cast<std::int64_t>(words.below(range, range))));
      if (!is_below(rank, limit)) refuse("pick", rank, limit);
      *ranks++ = rank;
    }
  }
  return -1;
}

template std::int64_t draw_negatives(const Candidates&, const Partners<std::int32_t>&, const NegativeRequest&, std::int64_t*);
template std::int64_t draw_negatives(const Candidates&, const Partners<std::int64_t>&, const NegativeRequest&, std::int64_t*);

}  // namespace khop
