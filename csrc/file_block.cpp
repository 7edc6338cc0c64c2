#include "file_block.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace khop {
namespace {

[[noreturn]] void fail(int error, const char* what) { throw std::system_error(error, std::generic_category(), what); }

int take_space(int file, std::size_t bytes) {
#ifdef __linux__
  return posix_fallocate(file, 0, static_cast<off_t>(bytes));
#else
  return ftruncate(file, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
#endif
}

}  // namespace

FileBlock::FileBlock(const std::string& folder) {
  std::string name = folder + "/.block-XXXXXX";
  file_ = mkstemp(name.data());
  if (file_ < 0) fail(errno, folder.c_str());
  unlink(name.c_str());
}

FileBlock::~FileBlock() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (file_ >= 0) close(file_);
}

void FileBlock::resize(std::size_t bytes) {
  if (bytes <= bytes_) return;
  if (const int error = take_space(file_, bytes); error != 0) fail(error, "room for ids on the disk");
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) fail(errno, "mapping ids on the disk");
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = static_cast<char*>(mapped);
  bytes_ = bytes;
}

void FileBlock::swap(FileBlock& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
}

}  // namespace khop
