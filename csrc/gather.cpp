#include "gather.h"

#include "memory.h"
#include "number.h"
#include "parallel.h"

#include <algorithm>
#include <array>
#include <cstring>

#pragma GCC diagnostic ignored "-Wpsabi"  // see number.h

namespace khop {
namespace {

constexpr std::int64_t kAhead = 16;           // prefetched rows
constexpr std::int64_t kFetchedBytes = 1024;  // of a row; the hardware prefetches the rest
constexpr std::int64_t kBlockIds = 4096;      // ids per block; every column is gathered for a block
constexpr std::int64_t kPartBytes = 1 << 18;  // less is not worth a thread
constexpr std::int64_t kLeastInGroups = 16;   // numbers in a row
constexpr int kDiskThreads = 8;               // at least, because they wait for the disk, not for a core

// Locates the i-th row in a table, by its id.
struct ById {
  const std::byte* table;
  std::int64_t row_bytes;
  const std::int64_t* ids;

  KHOP_INLINE const std::byte* operator()(std::int64_t i) const { return table + ids[i] * row_bytes; }
};

// The same for rows that have been looked up.
struct ByAddress {
  const std::byte* const* rows;

  KHOP_INLINE const std::byte* operator()(std::int64_t i) const { return rows[i]; }
};

// Prefetches row `i` + kAhead.
template <class Where>
KHOP_INLINE void prefetch_ahead(const Where& where, std::int64_t row_bytes, std::int64_t i, std::int64_t count) {
  if (i + kAhead >= count) return;
  const std::byte* row = where(i + kAhead);
  for (std::int64_t at = 0; at < std::min(row_bytes, kFetchedBytes); at += 64) __builtin_prefetch(row + at);
}

struct Copy {
  template <class Where>
  static KHOP_INLINE void run(Where where, std::int64_t row_bytes, std::int64_t count, std::byte* out) {
    for (std::int64_t i = 0; i < count; ++i) {
      prefetch_ahead(where, row_bytes, i, count);
      std::memcpy(out + i * row_bytes, where(i), static_cast<std::size_t>(row_bytes));
    }
  }
};

// From and To have the group size; the last group of a row is moved back to end with the row.
template <class T, class From, class To>
struct Widen {
  template <class Where>
  static KHOP_INLINE void run(Where where, std::int64_t width, std::int64_t count, const float* scales, float* out) {
    constexpr std::int64_t step = From::count;
    for (std::int64_t i = 0; i < count; ++i) {
      prefetch_ahead(where, width * static_cast<std::int64_t>(sizeof(T)), i, count);
      const T* row = reinterpret_cast<const T*>(where(i));
      for (std::int64_t next = 0; next < width; next += step) {
        const std::int64_t column = std::min(next, width - step);
        const auto values = From::load(row + column);
        To::store(out + i * width + column, scales ? values * To::load(scales + column) : values);
      }
    }
  }
};

template <class T>
struct WidenGroups {
  template <int bytes>
  using Of = Widen<T, Group<T, bytes>, Group<float, bytes>>;
};

template <class T, class Where>
void widen(Where where, std::int64_t width, std::int64_t count, const float* scales, float* out) {
  if (width >= kLeastInGroups) {
    run_widest<WidenGroups<T>::template Of>(where, width, count, scales, out);
  } else {
    run_widest<Widen<T, Single<T>, Single<float>>>(where, width, count, scales, out);
  }
}

template <class T, class Where>
void widen_block(const GatherColumn& column, Where where, std::int64_t count, std::int64_t first) {
  widen<T>(where, column.width, count, column.scales, static_cast<float*>(column.out) + first * column.width);
}

// Reads rows into rows `first`, `first` + 1, ... of the output.
template <class Where>
void read_block(const GatherColumn& column, Where where, std::int64_t count, std::int64_t first) {
  switch (column.kind) {
    case GatherColumn::Kind::bytes:
      return run_widest<Copy>(where, column.width, count, static_cast<std::byte*>(column.out) + first * column.width);
    case GatherColumn::Kind::float16:
      return widen_block<Float16>(column, where, count, first);
    case GatherColumn::Kind::bfloat16:
      return widen_block<BFloat16>(column, where, count, first);
    case GatherColumn::Kind::int8:
      return widen_block<std::int8_t>(column, where, count, first);
    case GatherColumn::Kind::uint8:
      return widen_block<std::uint8_t>(column, where, count, first);
  }
}

std::int64_t row_bytes_of(const GatherColumn& column) {
  const bool is_half = column.kind == GatherColumn::Kind::float16 || column.kind == GatherColumn::Kind::bfloat16;
  return column.width * (is_half ? 2 : 1);
}

// Locates the rows of `ids` in a table of several pieces.
void locate(const GatherColumn& column, std::int64_t row_bytes, std::span<const std::int64_t> ids, const std::byte** rows) {
  const std::vector<Piece>& pieces = column.pieces;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto after = std::upper_bound(pieces.begin(), pieces.end(), ids[i],
                                        [](std::int64_t id, const Piece& piece) { return id < piece.first; });
    const Piece& piece = *(after - 1);  // of pieces with equal begins, the last one has rows
    rows[i] = static_cast<const std::byte*>(piece.rows) + (ids[i] - piece.first) * row_bytes;
  }
}

bool reads_sparsely(const GatherColumn& column) {
  return std::ranges::any_of(column.pieces, [](const Piece& piece) { return has_sparse_reads(piece.rows); });
}

// Gathers the rows of `ids`, at most kBlockIds, into rows `first`, `first` + 1, ... of the output.
void gather_block(const GatherColumn& column, std::span<const std::int64_t> ids, std::int64_t first) {
  const std::int64_t row_bytes = row_bytes_of(column);
  if (row_bytes == 0) return;
  const auto count = static_cast<std::int64_t>(ids.size());
  const bool is_sparse = reads_sparsely(column);
  if (column.pieces.size() == 1 && !is_sparse) {
    return read_block(column, ById{static_cast<const std::byte*>(column.pieces[0].rows), row_bytes, ids.data()}, count, first);
  }
  std::array<const std::byte*, kBlockIds> rows;
  locate(column, row_bytes, ids, rows.data());
  if (is_sparse) request_rows(std::span(rows).first(ids.size()), row_bytes);
  read_block(column, ByAddress{rows.data()}, count, first);
}

}  // namespace

void gather_columns(std::span<const GatherColumn> columns, std::span<const std::int64_t> ids, int threads) {
  std::int64_t count = 0, row_bytes = 1;
  for (const GatherColumn& column : columns) {
    count = std::max(count, column.count);
    row_bytes += column.width;
    if (reads_sparsely(column)) threads = std::max(threads, kDiskThreads);
  }
  parallel_for(threads, count, std::max<std::int64_t>(kPartBytes / row_bytes, 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first < end; first += kBlockIds) {
      for (const GatherColumn& column : columns) {
        const std::int64_t last = std::min({end, first + kBlockIds, column.count});
        if (first < last) gather_block(column, ids.subspan(first, last - first), first);
      }
    }
  });
}

}  // namespace khop
