#include "segment.h"

#include "number.h"
#include "parallel.h"
#include "simd.h"

#include <algorithm>
#include <vector>

namespace khop {
namespace {

constexpr std::int64_t kAhead = 8;            // edges whose source rows are fetched before they are added
constexpr std::int64_t kPartBytes = 1 << 17;  // less is not worth a thread

struct Sum {
  template <class T>
  static KHOP_INLINE void add(Accumulator<T>* sum, const T* row, std::int64_t width, const std::int64_t*) {
    for (std::int64_t k = 0; k < width; ++k) sum[k] += widen(row[k]);
  }
  template <class T>
  static KHOP_INLINE void store(T* out, const Accumulator<T>* sum, std::int64_t width, std::int64_t) {
    for (std::int64_t k = 0; k < width; ++k) out[k] = narrow<T>(sum[k]);
  }
};

struct Mean : Sum {
  template <class T>
  static KHOP_INLINE void store(T* out, const Accumulator<T>* sum, std::int64_t width, std::int64_t count) {
    const auto divisor = static_cast<Accumulator<T>>(std::max<std::int64_t>(count, 1));
    for (std::int64_t k = 0; k < width; ++k) out[k] = narrow<T>(sum[k] / divisor);
  }
};

struct MeanGradient : Sum {
  template <class T>
  static KHOP_INLINE void add(Accumulator<T>* sum, const T* row, std::int64_t width, const std::int64_t* source_offset) {
    const auto share = Accumulator<T>{1} / static_cast<Accumulator<T>>(source_offset[1] - source_offset[0]);
    for (std::int64_t k = 0; k < width; ++k) sum[k] += widen(row[k]) * share;
  }
};

template <class T, class Index>
struct Arguments {
  const T* x;
  std::int64_t width;
  Csc<Index> edges;
  const std::int64_t* source_indptr;  // read by MeanGradient alone
  T* out;
};

template <class T>
KHOP_INLINE void prefetch_row(const T* row, std::int64_t width) {
  constexpr std::int64_t line = 64 / sizeof(T);
  for (std::int64_t k = 0; k < width; k += line) __builtin_prefetch(row + k);
}

template <class T, class Index, class Rule>
struct SumRows {
  static KHOP_INLINE void run(const Arguments<T, Index>* a, Accumulator<T>* sum, std::int64_t begin, std::int64_t end) {
    const std::int64_t width = a->width;
    const std::int64_t* indptr = a->edges.indptr.data();
    const Index* indices = a->edges.indices.data();
    const std::int64_t last = indptr[end];
    for (std::int64_t row = begin; row < end; ++row) {
      std::fill_n(sum, width, Accumulator<T>{0});
      for (std::int64_t edge = indptr[row]; edge < indptr[row + 1]; ++edge) {
        if (edge + kAhead < last) prefetch_row(a->x + indices[edge + kAhead] * width, width);
        const std::int64_t source = indices[edge];
        Rule::template add<T>(sum, a->x + source * width, width, a->source_indptr + source);
      }
      Rule::template store<T>(a->out + row * width, sum, width, indptr[row + 1] - indptr[row]);
    }
  }
};

// The first row of a part, when edges and rows together are split evenly: a hub must not make one thread late.
std::int64_t row_begin(std::span<const std::int64_t> indptr, int part, int parts) {
  const auto rows = static_cast<std::int64_t>(indptr.size()) - 1;
  const std::int64_t target = part_begin(indptr[rows] + rows, part, parts);
  std::int64_t low = 0, high = rows;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (indptr[middle] + middle < target) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <class Rule, class T, class Index>
void sum_rows(const Arguments<T, Index>& arguments, int threads) {
  const auto [x, width, edges, source_indptr, out] = arguments;
  const std::int64_t steps = edges.rows() + static_cast<std::int64_t>(edges.indices.size());
  const int parts = parts_for(threads, steps * width * static_cast<std::int64_t>(sizeof(T)), kPartBytes);
  parallel_parts(parts, [&](int part) {
    std::vector<Accumulator<T>> sum(width);
    run_widest<SumRows<T, Index, Rule>>(&arguments, sum.data(), row_begin(arguments.edges.indptr, part, parts),
                                        row_begin(arguments.edges.indptr, part + 1, parts));
  });
}

}  // namespace

template <class T, class Index>
void segment_sum(const T* x, std::int64_t width, Csc<Index> edges, T* out, int threads) {
  sum_rows<Sum>(Arguments<T, Index>{x, width, edges, nullptr, out}, threads);
}

template <class T, class Index>
void segment_mean(const T* x, std::int64_t width, Csc<Index> edges, T* out, int threads) {
  sum_rows<Mean>(Arguments<T, Index>{x, width, edges, nullptr, out}, threads);
}

template <class T, class Index>
void segment_mean_gradient(const T* gradient, std::int64_t width, Csc<Index> transposed,
                           std::span<const std::int64_t> indptr, T* out, int threads) {
  sum_rows<MeanGradient>(Arguments<T, Index>{gradient, width, transposed, indptr.data(), out}, threads);
}

template <class Index, class Row>
void transpose(Csc<Index> edges, std::span<std::int64_t> indptr, std::span<Row> rows) {
  std::ranges::fill(indptr, 0);
  for (const Index source : edges.indices) ++indptr[source + 1];
  for (std::size_t source = 1; source < indptr.size(); ++source) indptr[source] += indptr[source - 1];
  std::vector<std::int64_t> next(indptr.begin(), indptr.end() - 1);
  for (std::int64_t row = 0; row < edges.rows(); ++row) {
    for (std::int64_t edge = edges.indptr[row]; edge < edges.indptr[row + 1]; ++edge) {
      rows[next[edges.indices[edge]]++] = static_cast<Row>(row);
    }
  }
}

#define KHOP_SEGMENT(T, Index)                                                                                    \
  template void segment_sum(const T*, std::int64_t, Csc<Index>, T*, int);                                    \
  template void segment_mean(const T*, std::int64_t, Csc<Index>, T*, int);                                   \
  template void segment_mean_gradient(const T*, std::int64_t, Csc<Index>, std::span<const std::int64_t>, T*, int);
KHOP_SEGMENT(float, std::int32_t)
KHOP_SEGMENT(float, std::int64_t)
KHOP_SEGMENT(double, std::int32_t)
KHOP_SEGMENT(double, std::int64_t)
KHOP_SEGMENT(BFloat16, std::int32_t)
KHOP_SEGMENT(BFloat16, std::int64_t)

template void transpose(Csc<std::int32_t>, std::span<std::int64_t>, std::span<std::int32_t>);
template void transpose(Csc<std::int32_t>, std::span<std::int64_t>, std::span<std::int64_t>);
template void transpose(Csc<std::int64_t>, std::span<std::int64_t>, std::span<std::int32_t>);
template void transpose(Csc<std::int64_t>, std::span<std::int64_t>, std::span<std::int64_t>);

}  // namespace khop
