// Equality to the bit, for results that hold NaN or signed zeros.
#pragma once

#include <cstring>
#include <vector>

namespace khop::testing {

template <class T>
bool same_bytes(const std::vector<T>& left, const std::vector<T>& right) {
  return left.size() == right.size() && (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(T)) == 0);
}

}  // namespace khop::testing
