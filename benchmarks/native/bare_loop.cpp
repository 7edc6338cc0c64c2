#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "benchmark.h"
#include "buffer_pool.h"
#include "csc.h"
#include "memory.h"
#include "node_index.h"
#include "random.h"
#include "sample_hop.h"

namespace khop::benchmark {
namespace {

constexpr std::array<std::int64_t, 3> kFanouts = {15, 10, 5};
constexpr int kInFlight = 4;  // batches alive at once, per thread: as many as a loader keeps

// A .npy file of format 1, mapped for random reads until the process ends.
template <class T>
std::span<const T> mapped(const std::filesystem::path& path) {
  constexpr std::size_t kMagicBytes = 8, kLengthBytes = 2;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || fstat(file, &status) != 0) throw std::runtime_error("cannot read " + path.string());
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
  close(file);
  if (data == MAP_FAILED) throw std::runtime_error("cannot map " + path.string());
  expect_random_access(data, bytes);
  std::uint16_t header_bytes = 0;
  std::memcpy(&header_bytes, static_cast<const std::byte*>(data) + kMagicBytes, kLengthBytes);
  const std::size_t begin = kMagicBytes + kLengthBytes + header_bytes;
  return {reinterpret_cast<const T*>(static_cast<const std::byte*>(data) + begin), (bytes - begin) / sizeof(T)};
}

std::filesystem::path only_folder_in(const std::filesystem::path& parent) {
  for (const auto& entry : std::filesystem::directory_iterator(parent)) return entry.path();
  throw std::runtime_error(parent.string() + " is empty");
}

// A block of the pool that goes back by itself: what a result tensor is to Python.
template <class T>
class Lent {
 public:
  explicit Lent(std::size_t count) : block_(buffer_pool().acquire(count * sizeof(T))), count_(count) {}
  ~Lent() {
    if (block_.data != nullptr) buffer_pool().release(block_);
  }
  Lent(Lent&& other) noexcept : block_(std::exchange(other.block_, {})), count_(other.count_) {}
  Lent& operator=(Lent&&) = delete;

  T* data() const { return static_cast<T*>(block_.data); }
  std::span<const T> first(std::size_t count) const { return {data(), count}; }
  std::size_t size() const { return count_; }

 private:
  MemoryBlock block_;
  std::size_t count_;
};

// What a batch of the subgraph expansion consists of, before hops are joined.
struct Batch {
  std::vector<Lent<std::int64_t>> wide;    // offsets and nodes
  std::vector<Lent<std::int32_t>> narrow;  // neighbors, local ids
};

using Graph = Csc<std::int32_t>;

template <class Id>
void insert(NodeIndex& index, std::span<const Id> ids, Batch& batch) {
  batch.narrow.emplace_back(ids.size());
  index.insert(ids, batch.narrow.back().data());
}

Batch sampled(const Graph& graph, NodeIndex& index, std::span<const std::int64_t> seeds, std::uint64_t key) {
  Batch batch;
  insert(index, seeds, batch);
  std::size_t first = 0;
  std::uint32_t hop = 0;
  for (const std::int64_t fanout : kFanouts) {
    const std::size_t size = index.size();
    const Lent<std::int64_t>& frontier = batch.wide.emplace_back(size - first);
    index.copy_nodes(first, frontier.data());
    const HopRequest request{frontier.first(size - first), {}, {}, fanout, Replacement::without, key, ++hop, 1};
    const auto capacity = static_cast<std::size_t>(edge_capacity(graph, request));
    batch.wide.emplace_back(request.nodes.size() + 1);
    const Lent<std::int32_t> neighbors(capacity);
    const auto edges = sample_hop(graph, request, {batch.wide.back().data(), neighbors.data(), nullptr});
    insert(index, neighbors.first(static_cast<std::size_t>(edges)), batch);
    first = size;
  }
  batch.wide.emplace_back(index.size());
  index.copy_nodes(0, batch.wide.back().data());
  index.clear();
  return batch;
}

// Batches are claimed one by one, as a loader's threads do.
class Line {
 public:
  Line(const Graph& graph, std::span<const std::int64_t> train, std::int64_t batch_size, int batches)
      : graph_(graph), train_(train), batch_size_(static_cast<std::size_t>(batch_size)), batches_(batches) {}

  void work(NodeIndex& index) {
    std::deque<Batch> kept;
    std::vector<std::int64_t> seeds(batch_size_);
    for (int step = next_++; step < batches_; step = next_++) {
      const auto key = static_cast<std::uint64_t>(step);
      for (std::size_t i = 0; i < batch_size_; ++i) {
        const Words words = philox(key, {static_cast<std::uint32_t>(i), 0, 0, 0});
        seeds[i] = train_[words[0] % train_.size()];
      }
      kept.push_back(sampled(graph_, index, seeds, key));
      if (kept.size() > kInFlight) kept.pop_front();
    }
  }

 private:
  const Graph& graph_;
  std::span<const std::int64_t> train_;
  std::size_t batch_size_;
  int batches_;
  std::atomic<int> next_{0};
};

}  // namespace

double bare_sampling_ms(const std::filesystem::path& folder, std::int64_t batch_size, int batches, int threads, int rounds) {
  const std::filesystem::path edges = only_folder_in(folder / "edges");
  const Graph graph{mapped<std::int64_t>(edges / "indptr.npy"), mapped<std::int32_t>(edges / "indices.npy")};
  const auto train = mapped<std::int64_t>(folder / "nodes" / "node" / "splits" / "train.npy");
  std::deque<NodeIndex> indexes;
  for (int thread = 0; thread < threads; ++thread) indexes.emplace_back(graph.rows());
  std::vector<double> times;
  for (int round = 0; round <= rounds; ++round) {
    Line line(graph, train, batch_size, batches);
    const auto started = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    for (NodeIndex& index : indexes) workers.emplace_back([&] { line.work(index); });
    for (std::thread& worker : workers) worker.join();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count() / batches);
  }
  std::sort(times.begin() + 1, times.end());
  return times[1 + static_cast<std::size_t>(rounds) / 2];
}

}  // namespace khop::benchmark
