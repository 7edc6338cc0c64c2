// Zero-initialized words, in memory or in a file of a folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "file_block.h"
#include "memory.h"

namespace khop {

class ZeroedWords {
 public:
  explicit ZeroedWords(std::size_t count) : memory_(count), words_(memory_.data()), count_(count) {}
  ZeroedWords(std::size_t count, const std::string& folder) : memory_(0), file_(folder), count_(count) {
    file_.resize(count * sizeof(std::uint64_t));
    words_ = reinterpret_cast<std::uint64_t*>(file_.data());
  }
  ZeroedWords(ZeroedWords&&) noexcept = default;
  ZeroedWords& operator=(ZeroedWords&&) noexcept = default;

  std::size_t size() const { return count_; }
  std::uint64_t& operator[](std::size_t at) { return words_[at]; }
  const std::uint64_t& operator[](std::size_t at) const { return words_[at]; }

 private:
  ZeroedArray<std::uint64_t> memory_;
  FileBlock file_;
  std::uint64_t* words_ = nullptr;
  std::size_t count_;
};

}  // namespace khop
