#include "segment_mixture.h"

#include "segment_rows.h"
#include "simd.h"

#include <algorithm>

namespace khop {
namespace {

constexpr std::int64_t kLanes = 8;

// Sets the rows of out, of `width` numbers, to sums over their edges in the order of RunSums: add(edge, sum) adds an edge.
template <class T, class Add>
KHOP_INLINE void sum_in_runs(const Edges* edges, std::int64_t width, std::int64_t begin, std::int64_t end, T* out, Add&& add) {
  RunSums<T> sums(width);
  for (std::int64_t row = begin; row < end; ++row) {
    T* const mine = out + row * width;
    const std::int64_t first = edges->indptr[row], last = edges->indptr[row + 1];
    std::int64_t edge = first;
    do {
      std::fill(mine, mine + width, T{});
      for (const std::int64_t stop = std::min(edge + kRun, last); edge < stop; ++edge) add(edge, mine);
      if (last - first <= kRun) continue;
      const T* const sum = sums.add(mine, edge - first, last - first);
      if (sum != nullptr) std::copy(sum, sum + width, mine);
    } while (edge < last);
  }
}

template <class T>
struct Mixture {
  static KHOP_INLINE void run(const T* x, std::int64_t width, const T* weights, std::int64_t bases, const Edges* edges,
                              std::int64_t begin, std::int64_t end, T* out) {
    const std::int64_t* indptr = edges->indptr.data();
    const std::int32_t* indices = edges->indices.data();
    sum_in_runs(edges, bases * width, begin, end, out, [&](std::int64_t edge, T* __restrict mine) KHOP_INLINED {
      if (edge + kAhead < indptr[end]) prefetch_row(x + indices[edge + kAhead] * width, width);
      const T* __restrict source = x + indices[edge] * width;
      for (std::int64_t basis = 0; basis < bases; ++basis) {
        const T weight = weights[edge * bases + basis];
        T* __restrict sum = mine + basis * width;
        for (std::int64_t column = 0; column < width; ++column) sum[column] += weight * source[column];
      }
    });
  }
};

template <class T>
struct OfSources {
  static KHOP_INLINE void run(const T* gradient, std::int64_t width, const T* weights, std::int64_t bases, const Edges* edges,
                              const std::int32_t* positions, std::int64_t begin, std::int64_t end, T* out) {
    const std::int32_t* rows = edges->indices.data();
    sum_in_runs(edges, width, begin, end, out, [&](std::int64_t edge, T* __restrict sum) KHOP_INLINED {
      const T* __restrict of_row = gradient + rows[edge] * bases * width;
      const T* of_edge = weights + positions[edge] * bases;
      for (std::int64_t basis = 0; basis < bases; ++basis) {
        const T weight = of_edge[basis];
        for (std::int64_t column = 0; column < width; ++column) sum[column] += weight * of_row[basis * width + column];
      }
    });
  }
};

template <class T>
struct OfWeights {
  static KHOP_INLINE void run(const T* x, std::int64_t width, const T* gradient, std::int64_t bases, const Edges* edges,
                              std::int64_t begin, std::int64_t end, T* out) {
    const std::int64_t* indptr = edges->indptr.data();
    const std::int32_t* indices = edges->indices.data();
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t edge = indptr[row]; edge < indptr[row + 1]; ++edge) {
        if (edge + kAhead < indptr[end]) prefetch_row(x + indices[edge + kAhead] * width, width);
        for (std::int64_t basis = 0; basis < bases; ++basis) {
          out[edge * bases + basis] = dot(x + indices[edge] * width, gradient + (row * bases + basis) * width, width);
        }
      }
    }
  }

 private:
  static KHOP_INLINE T dot(const T* a, const T* b, std::int64_t count) {
    T sums[kLanes]{};
    std::int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[at + lane] * b[at + lane];
    }
    for (std::int64_t lane = 0; at + lane < count; ++lane) sums[lane] += a[at + lane] * b[at + lane];
    for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    }
    return sums[0];
  }
};

// Calls fn(begin, end) for ranges of rows with evenly many edges.
template <class Fn>
void over_parts(const Edges& edges, std::int64_t bytes_per_edge, int threads, Fn&& fn) {
  const auto steps = static_cast<std::int64_t>(edges.indices.size()) + edges.rows();
  const int parts = spare_parts(threads, steps * bytes_per_edge, kPartBytes);
  parallel_parts(threads, parts,
                 [&](int part) { fn(first_row(edges.indptr, part, parts), first_row(edges.indptr, part + 1, parts)); });
}

}  // namespace

template <class T>
void segment_mixture(const T* x, std::int64_t width, const T* weights, std::int64_t bases, Edges edges, T* out, int threads) {
  over_parts(edges, width * bases * static_cast<std::int64_t>(sizeof(T)), threads, [&](std::int64_t begin, std::int64_t end) {
    run_widest<Mixture<T>>(x, width, weights, bases, &edges, begin, end, out);
  });
}

template <class T>
void segment_mixture_sources(const T* gradient, std::int64_t width, const T* weights, std::int64_t bases, Edges transposed,
                             std::span<const std::int32_t> positions, T* out, int threads) {
  over_parts(transposed, width * bases * static_cast<std::int64_t>(sizeof(T)), threads,
             [&](std::int64_t begin, std::int64_t end) {
               run_widest<OfSources<T>>(gradient, width, weights, bases, &transposed, positions.data(), begin, end, out);
             });
}

template <class T>
void segment_mixture_weights(const T* x, std::int64_t width, const T* gradient, std::int64_t bases, Edges edges, T* out,
                             int threads) {
  over_parts(edges, width * bases * static_cast<std::int64_t>(sizeof(T)), threads, [&](std::int64_t begin, std::int64_t end) {
    run_widest<OfWeights<T>>(x, width, gradient, bases, &edges, begin, end, out);
  });
}

#define KHOP_SEGMENT_MIXTURE(T)                                                                                            \
  template void segment_mixture(const T*, std::int64_t, const T*, std::int64_t, Edges, T*, int);                           \
  template void segment_mixture_sources(const T*, std::int64_t, const T*, std::int64_t, Edges, std::span<const std::int32_t>, \
                                        T*, int);                                                                          \
  template void segment_mixture_weights(const T*, std::int64_t, const T*, std::int64_t, Edges, T*, int);
KHOP_SEGMENT_MIXTURE(float)
KHOP_SEGMENT_MIXTURE(double)
#undef KHOP_SEGMENT_MIXTURE

void merge_edges(const std::vector<TypedEdges>& types, std::span<std::int64_t> indptr, std::span<std::int32_t> indices,
                 std::span<std::int32_t> relations, int threads) {
  const auto rows = static_cast<std::int64_t>(indptr.size()) - 1;
  const std::int64_t bytes = rows * static_cast<std::int64_t>(types.size() * sizeof(std::int64_t));
  const int parts = spare_parts(threads, bytes, kPartBytes);
  std::fill(indptr.begin(), indptr.end(), 0);
  parallel_parts(threads, parts, [&](int part) {
    const std::int64_t begin = part_begin(rows, part, parts), end = part_begin(rows, part + 1, parts);
    for (const TypedEdges& type : types) {
      if (type.edges.indices.empty()) continue;
      const std::int64_t* of_type = type.edges.indptr.data();
      for (std::int64_t row = begin; row < end; ++row) indptr[row + 1] += of_type[row + 1] - of_type[row];
    }
  });
  for (std::int64_t row = 0; row < rows; ++row) indptr[row + 1] += indptr[row];
  parallel_parts(threads, parts, [&](int part) {
    const std::int64_t begin = part_begin(rows, part, parts), end = part_begin(rows, part + 1, parts);
    std::vector<std::int64_t> next(indptr.begin() + begin, indptr.begin() + end);
    for (std::size_t number = 0; number < types.size(); ++number) {
      const TypedEdges& type = types[number];
      if (type.edges.indices.empty()) continue;
      const std::int64_t* of_type = type.edges.indptr.data();
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t edge = of_type[row]; edge < of_type[row + 1]; ++edge) {
          const std::int64_t place = next[row - begin]++;
          indices[place] = type.edges.indices[edge] + type.first;
          relations[place] = static_cast<std::int32_t>(number);
        }
      }
    }
  });
}

}  // namespace khop
