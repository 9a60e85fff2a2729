// SPDX-License-Identifier: Apache-2.0
// Bucket k + 1 is encoded while bucket k travels: shown on a transport that
// does not deliver bucket k before bucket k + 1 has been encoded.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "exchange/support.h"

namespace thinwire::exchange::overlap_test {
namespace {

constexpr std::size_t kBuckets = 6;
constexpr std::size_t kBucketElements = 1024;

// How many buckets have been encoded.
class Progress {
 public:
  void encoded_one() {
    const std::lock_guard lock(mutex_);
    ++encoded_;
    changed_.notify_all();
  }
  // False if it does not come to that; long enough for any machine.
  bool wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10),
                             [&] { return encoded_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t encoded_ = 0;
};

// Stands for a second rank whose messages are all zero. Collectives come in the
// order in which they are queued: to servers 0, to servers 1, to servers 2,
// from servers 0, to servers 3, from servers 1, ...
class HoldingTransport final : public comm::Transport {
 public:
  HoldingTransport(Progress& progress, std::vector<bool>& overlapped)
      : progress_(progress), overlapped_(overlapped) {}

  [[nodiscard]] std::string_view name() const noexcept override {
    return "holding";
  }
  [[nodiscard]] int rank() const noexcept override { return 0; }
  [[nodiscard]] int size() const noexcept override { return 2; }
  void exchange(std::span<const comm::SendMessage>,
                std::span<const comm::RecvMessage>,
                const comm::Operation&) override {
    const std::size_t i = index_++;
    const bool to_servers = i < 2 || i % 2 == 0;
    if (!to_servers) return;
    const std::size_t bucket = i < 2 ? i : i / 2 + 1;
    if (bucket + 1 < kBuckets)
      overlapped_[bucket] = progress_.wait_for(bucket + 2);
  }
  [[nodiscard]] std::unique_ptr<comm::Transport> split(
      int, int, const comm::Operation&) override {
    return nullptr;
  }
  void give_up(std::string_view) noexcept override {}

 private:
  Progress& progress_;
  std::vector<bool>& overlapped_;
  std::size_t index_ = 0;
};

TEST(Overlap, TheNextBucketIsEncodedWhileOneIsInFlight) {
  Progress progress;
  std::vector<bool> overlapped(kBuckets);
  {
    comm::Communicator comm(
        std::make_unique<HoldingTransport>(progress, overlapped));
    const std::vector<Range> units = {{0, kBuckets * kBucketElements}};
    test::Exchange exchange(comm, units,
                            {.blocks = {.bucket_elements = kBucketElements}});
    const std::vector<float> values(kBuckets * kBucketElements, 1.0f);
    exchange.all.run(
        [&](std::size_t b) {
          progress.encoded_one();
          return kernels::SignInput{.values = &values[b * kBucketElements]};
        },
        [](std::size_t, kernels::Signs) {});
  }
  for (std::size_t bucket = 0; bucket + 1 < kBuckets; ++bucket)
    EXPECT_TRUE(overlapped[bucket]) << "bucket " << bucket;
}

}  // namespace
}  // namespace thinwire::exchange::overlap_test
