// Conversion of an unsorted edge list to CSC by destination.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

template <class Id>
struct EdgeList {
  std::span<const Id> sources, destinations;  // of the same length
};

// The first positions with an id outside [0, count), or -1.
struct OutsideIds {
  std::int64_t source = -1, destination = -1;
};

// Edges are first distributed to blocks of 2^block_shift consecutive destinations: few blocks, each with at most 2^16.
int block_shift(std::int64_t num_destinations);

// Groups edges by destination, in input order within a row. order[position in CSC] = position in the input.
// indptr has num_destinations + 1 offsets. If an id is outside the range, the outputs are undefined.
// Besides its arguments it takes 1 byte per edge (2 up to a million edges) and, per thread, the memory of the edges of the largest
// block, without those of its largest row if that row has most of them.
template <class Id, class Index>
OutsideIds build_csc(EdgeList<Id> edges, std::int64_t num_sources, std::span<std::int64_t> indptr, std::span<Index> indices,
                     std::span<std::int64_t> order, int threads);

// The same without order: 8 bytes per edge less.
template <class Id, class Index>
OutsideIds build_csc(EdgeList<Id> edges, std::int64_t num_sources, std::span<std::int64_t> indptr, std::span<Index> indices,
                     int threads);

}  // namespace khop
