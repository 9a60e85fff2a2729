// SPDX-License-Identifier: Apache-2.0
// What a save and a load hold beside the training, counted where memory is
// allocated.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <vector>

#include "checkpoint/rows.h"
#include "support/folder.h"
#include "support/sanitizers.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/local.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/memory.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::checkpoint::memory_test {
namespace {

using thinwire::test::fewer_if_sanitized;
using thinwire::test::Folder;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// 12.6 MB per fp32 array, and more than half of them in one parameter.
ParameterLayout model() {
  return ParameterLayout::of({{"large", {2 << 20}},
                              {"one", {1}},
                              {"odd", {1023, 1025}},
                              {"none", {0}},
                              {"last", {4097}}});
}

std::uint64_t lines(std::uint64_t bytes) {
  return (bytes + Buffer::kAlignment - 1) / Buffer::kAlignment *
         Buffer::kAlignment;
}

template <class Optimizer>
struct Run {
  Run(comm::Communicator& c, std::unique_ptr<Optimizer> made)
      : comm(c),
        optimizer(std::move(made)),
        params(Buffer::of<float>(layout.size())),
        grads(Buffer::of<float>(layout.size())) {
    step();
    step();
  }

  void step() {
    std::fill_n(grads.as<float>().begin(), grads.size(), 0.5f);
    optimizer->step(params.view(), grads.view());
  }
  Training training() {
    return {.comm = comm,
            .layout = layout,
            .params = params.view(),
            .optimizer = *optimizer,
            .step = optimizer->progress().steps};
  }

  comm::Communicator& comm;
  ParameterLayout layout = model();
  std::unique_ptr<Optimizer> optimizer;
  Buffer params;
  Buffer grads;
};

Run<optim::DataParallel> adam(comm::Communicator& comm) {
  return {comm, std::make_unique<optim::DataParallel>(
                    comm, std::make_unique<optim::Adam>(model(),
                                                        optim::AdamOptions{}))};
}

Run<optim::OnebitAdam> onebit_adam(comm::Communicator& comm) {
  return {comm,
          std::make_unique<optim::OnebitAdam>(
              comm, model(), optim::OnebitAdamOptions{.freeze = {.step = 1}})};
}

std::size_t entries(const char* directory) {
  const std::filesystem::directory_iterator all(directory);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::uint64_t held() { return memory_use().now_of(MemoryKind::kOther); }

// Weights of up to 256 MiB are one file, rank 0's; moments are slices.
std::uint64_t adam_snapshot(int rank, int world) {
  const ParameterLayout layout = model();
  const Range share = share_of(layout.size(), rank, world);
  const std::uint64_t row_bytes = 3 * sizeof(std::int64_t);
  return (rank == 0 ? lines(4 * layout.size()) : 0) +
         lines(8 * share.size +
               row_bytes * rows_of(layout, std::vector{share}).size());
}

TEST(CheckpointMemory, OfAnAsynchronousSaveIsThisRanksBytesAndStays) {
  const SaveOptions options{.asynchronous = true, .durable = false};
  const int most = fewer_if_sanitized<int>({5, 50}, 1).back();
  for (const int world : {1, 2, 3}) {
    const int saves = world == 1 ? most : 5;
    const Folder folder;
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      auto run = adam(comm);
      const std::uint64_t before = held();
      Saver saver(comm);
      std::uint64_t after_two = 0;
      std::size_t files = 0;
      std::size_t threads = 0;
      for (int i = 1; i <= saves; ++i) {
        saver.save(run.training(), folder.in("run"), {}, options);
        if (i != 2) continue;
        after_two = held();
        saver.wait();
        files = entries("/proc/self/fd");
        threads = entries("/proc/self/task");
      }
      saver.wait();
      EXPECT_EQ(after_two, held());
      if (world == 1) {  // the process has no other ranks
        EXPECT_EQ(entries("/proc/self/fd"), files);
        EXPECT_EQ(entries("/proc/self/task"), threads);
      }
      EXPECT_EQ(held() - before, adam_snapshot(comm.rank(), world));
      saver.release_buffers();
      EXPECT_EQ(held(), before);
    });
  }
}

// 16 bytes per element in slices, the ranks' own errors in whole.
TEST(CheckpointMemory, OfCompressedStatesIsAsDocumented) {
  const SaveOptions options{.asynchronous = true, .durable = false};
  for (const int world : {2, 3}) {
    const Folder folder;
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      auto run = onebit_adam(comm);
      const std::uint64_t before = held();
      Saver saver(comm);
      saver.save(run.training(), folder.in("run"), {}, options);
      const auto n = static_cast<double>(run.layout.size());
      double snapshot = static_cast<double>(held() - before);
      double all = 0;
      comm.all_reduce(View(&snapshot, 1, DType::kFloat64));
      all = snapshot;
      EXPECT_NEAR(all, 16 * n + 4 * n * world, 0.05 * all);
    });
  }
}

TEST(CheckpointMemory, OfASynchronousSaveIsAtMostEightMebibytes) {
  const SaveOptions options{.durable = false};
  for (const int world : {1, 2, 3}) {
    const Folder folder;
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      auto run = adam(comm);
      reset_memory_peak();
      const std::uint64_t before = memory_use().total();
      save(run.training(), folder.in("run"), {}, options);
      EXPECT_LE(memory_use().peak() - before, 8 * kMiB);
      EXPECT_EQ(memory_use().total(), before);
    });
  }
}

// New parameters and states, and a chunk of a file at a time.
TEST(CheckpointMemory, OfALoadIsWhatTheRankKeepsOnceMore) {
  for (const int world : {1, 2, 3}) {
    const Folder folder;
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      auto run = adam(comm);
      save(run.training(), folder.in("run"), {}, {.durable = false});
      reset_memory_peak();
      const std::uint64_t before = memory_use().total();
      load(run.training(), folder.in("run"));
      EXPECT_LE(memory_use().peak() - before,
                12 * run.layout.size() + 5 * kMiB);
      EXPECT_EQ(memory_use().total(), before);
    });
  }
}

}  // namespace
}  // namespace thinwire::checkpoint::memory_test
