#include "gather.h"

#include "number.h"
#include "parallel.h"

#include <algorithm>
#include <cstring>

#pragma GCC diagnostic ignored "-Wpsabi"  // see number.h

namespace khop {
namespace {

constexpr std::int64_t kAhead = 16;           // rows fetched before they are copied
constexpr std::int64_t kFetchedBytes = 1024;  // of a row; behind them the machine sees where it goes on by itself
constexpr std::int64_t kBlockIds = 4096;      // of which every column is gathered before the next ones are read
constexpr std::int64_t kPartBytes = 1 << 18;  // less is not worth a thread

// Fetches the row that is kAhead ids behind `i`.
KHOP_INLINE void prefetch_ahead(const std::byte* table, std::int64_t row_bytes, std::span<const std::int64_t> ids,
                                std::int64_t i) {
  if (i + kAhead >= static_cast<std::int64_t>(ids.size())) return;
  const std::byte* row = table + ids[i + kAhead] * row_bytes;
  for (std::int64_t at = 0; at < std::min(row_bytes, kFetchedBytes); at += 64) __builtin_prefetch(row + at);
}

struct Copy {
  static KHOP_INLINE void run(const std::byte* table, std::int64_t row_bytes, std::span<const std::int64_t> ids,
                              std::byte* out) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(ids.size()); ++i) {
      prefetch_ahead(table, row_bytes, ids, i);
      std::memcpy(out + i * row_bytes, table + ids[i] * row_bytes, static_cast<std::size_t>(row_bytes));
    }
  }
};

// G says how many numbers are read at a time; the last ones of a row are moved back to end with it.
template <class T, template <class> class G>
struct Widen {
  static KHOP_INLINE void run(const T* table, std::int64_t width, std::span<const std::int64_t> ids, const float* scales,
                              float* out) {
    constexpr std::int64_t step = G<T>::count;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(ids.size()); ++i) {
      prefetch_ahead(reinterpret_cast<const std::byte*>(table), width * static_cast<std::int64_t>(sizeof(T)), ids, i);
      const T* row = table + ids[i] * width;
      for (std::int64_t next = 0; next < width; next += step) {
        const std::int64_t column = std::min(next, width - step);
        const auto values = G<T>::load(row + column);
        G<float>::store(out + i * width + column, scales ? values * G<float>::load(scales + column) : values);
      }
    }
  }
};

// Runs the kernel over ranges of the ids, each with its part of the output.
template <class Kernel, class T, class Out, class... Rest>
void gather_with(const T* table, std::int64_t width, std::span<const std::int64_t> ids, Out* out, int threads, Rest... rest) {
  if (width == 0) return;
  const std::int64_t grain = std::max<std::int64_t>(kPartBytes / (width * static_cast<std::int64_t>(sizeof(Out))), 1);
  parallel_for(threads, static_cast<std::int64_t>(ids.size()), grain, [&](std::int64_t begin, std::int64_t end) {
    run_widest<Kernel>(table, width, ids.subspan(begin, end - begin), rest..., out + begin * width);
  });
}

}  // namespace

void gather(const std::byte* table, std::int64_t row_bytes, std::span<const std::int64_t> ids, std::byte* out, int threads) {
  gather_with<Copy>(table, row_bytes, ids, out, threads);
}

template <class T>
void gather_float32(const T* table, std::int64_t width, std::span<const std::int64_t> ids, const float* scales, float* out,
                    int threads) {
  if (width >= Group<T>::count) {
    gather_with<Widen<T, Group>>(table, width, ids, out, threads, scales);
  } else {
    gather_with<Widen<T, Single>>(table, width, ids, out, threads, scales);
  }
}

#define KHOP_GATHER(T) \
  template void gather_float32(const T*, std::int64_t, std::span<const std::int64_t>, const float*, float*, int);
KHOP_GATHER(Float16)
KHOP_GATHER(BFloat16)
KHOP_GATHER(std::int8_t)
KHOP_GATHER(std::uint8_t)
#undef KHOP_GATHER

namespace {

template <class T>
void widen(const GatherColumn& column, std::span<const std::int64_t> ids, std::int64_t first) {
  gather_float32(static_cast<const T*>(column.table), column.width, ids, column.scales,
                 static_cast<float*>(column.out) + first * column.width, 1);
}

// The rows of `ids`, which are rows `first` and following of the output.
void gather_block(const GatherColumn& column, std::span<const std::int64_t> ids, std::int64_t first) {
  switch (column.kind) {
    case GatherColumn::Kind::bytes:
      return gather(static_cast<const std::byte*>(column.table), column.width, ids,
                    static_cast<std::byte*>(column.out) + first * column.width, 1);
    case GatherColumn::Kind::float16:
      return widen<Float16>(column, ids, first);
    case GatherColumn::Kind::bfloat16:
      return widen<BFloat16>(column, ids, first);
    case GatherColumn::Kind::int8:
      return widen<std::int8_t>(column, ids, first);
    case GatherColumn::Kind::uint8:
      return widen<std::uint8_t>(column, ids, first);
  }
}

}  // namespace

void gather_columns(std::span<const GatherColumn> columns, std::span<const std::int64_t> ids, int threads) {
  std::int64_t count = 0, row_bytes = 1;
  for (const GatherColumn& column : columns) {
    count = std::max(count, column.count);
    row_bytes += column.width;
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
