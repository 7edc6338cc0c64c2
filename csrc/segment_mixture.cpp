#include "segment_mixture.h"

#include "segment_rows.h"
#include "simd.h"

#include <algorithm>

namespace khop {
namespace {

constexpr std::int64_t kLanes = 8;

// The rows of out begin as zeros.
template <class T>
struct Mixture {
  static KHOP_INLINE void run(const T* x, std::int64_t width, const T* weights, std::int64_t bases, const Edges* edges,
                              std::int64_t begin, std::int64_t end, T* out) {
    const std::int64_t* indptr = edges->indptr.data();
    const std::int32_t* indices = edges->indices.data();
    for (std::int64_t row = begin; row < end; ++row) {
      T* __restrict mine = out + row * bases * width;
      std::fill(mine, mine + bases * width, T{});
      for (std::int64_t edge = indptr[row]; edge < indptr[row + 1]; ++edge) {
        if (edge + kAhead < indptr[end]) prefetch_row(x + indices[edge + kAhead] * width, width);
        const T* __restrict source = x + indices[edge] * width;
        for (std::int64_t basis = 0; basis < bases; ++basis) {
          const T weight = weights[edge * bases + basis];
          T* __restrict sum = mine + basis * width;
          for (std::int64_t column = 0; column < width; ++column) sum[column] += weight * source[column];
        }
      }
    }
  }
};

template <class T>
struct OfSources {
  static KHOP_INLINE void run(const T* gradient, std::int64_t width, const T* weights, std::int64_t bases, const Edges* edges,
                              const std::int32_t* positions, std::int64_t begin, std::int64_t end, T* out) {
    const std::int64_t* indptr = edges->indptr.data();
    const std::int32_t* rows = edges->indices.data();
    for (std::int64_t source = begin; source < end; ++source) {
      T* __restrict sum = out + source * width;
      std::fill(sum, sum + width, T{});
      for (std::int64_t edge = indptr[source]; edge < indptr[source + 1]; ++edge) {
        const T* __restrict of_row = gradient + rows[edge] * bases * width;
        const T* of_edge = weights + positions[edge] * bases;
        for (std::int64_t basis = 0; basis < bases; ++basis) {
          const T weight = of_edge[basis];
          for (std::int64_t column = 0; column < width; ++column) sum[column] += weight * of_row[basis * width + column];
        }
      }
    }
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
