// From an unsorted edge list to CSC by destination.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

template <class Id>
struct EdgeList {
  std::span<const Id> sources, destinations;  // of the same length
};

// The first positions at which an id is not in [0, count); -1 where all are.
struct OutsideIds {
  std::int64_t source = -1, destination = -1;
};

// Edges are first dealt to blocks of 2^block_shift consecutive destinations: few blocks, each of at most 2^16.
int block_shift(std::int64_t num_destinations);

// Groups edges by destination, in input order within a row. order[position in CSC] = position in the input.
// indptr holds num_destinations + 1 offsets. When an id is outside, the outputs hold nothing of use.
// Beyond its arguments it takes 1 byte an edge (2 up to a million edges) and, per thread, what the edges
// of the fullest block do, without those of its largest row if that has most of them.
template <class Id, class Index>
OutsideIds build_csc(EdgeList<Id> edges, std::int64_t num_sources, std::span<std::int64_t> indptr, std::span<Index> indices,
                     std::span<std::int64_t> order, int threads);

// The same without order: 8 bytes an edge less.
template <class Id, class Index>
OutsideIds build_csc(EdgeList<Id> edges, std::int64_t num_sources, std::span<std::int64_t> indptr, std::span<Index> indices,
                     int threads);

}  // namespace khop
