// SPDX-License-Identifier: Apache-2.0
// The way of records against plain loops over all workers, for buckets that
// become ready in any order, and for runs and buckets that are dropped.
#include "exchange/pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>
#include <utility>

#include "exchange/codec/sign.h"
#include "exchange/support.h"
#include "support/hosts.h"
#include "support/ranks.h"

namespace thinwire::exchange::pipeline_test {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;
using enum Direction;

// A codec without residuals. 1 bit is SignCodec.
struct Coder {
  int bits;

  [[nodiscard]] const Codec& codec() const {
    if (bits == 1) return sign_codec();
    return codec_of(bits);
  }
  void encode(Floats x, std::uint8_t* record) const {
    Floats error(x.size());
    if (bits == 1)
      SignCodec::encode({.values = x.data()},
                        {.residual = error, .num_active = x.size()}, record);
    else
      codec_of(bits).encode({.residual = x, .error = error}, record);
  }
  [[nodiscard]] Floats mean(std::span<const std::uint8_t* const> records,
                            std::size_t size) const {
    Floats mean(size);
    const float share = 1.0f / static_cast<float>(records.size());
    if (bits != 1) codec_of(bits).average(records, share, mean);
    for (std::size_t r = 0; bits == 1 && r < records.size(); ++r) {
      const float step = scale_of(records[r]) * share;
      for (std::size_t i = 0; i < size; ++i)
        mean[i] += (words_of(records[r])[i / 32] >> i % 32 & 1) ? step : -step;
    }
    return mean;
  }
};

struct Case {
  std::vector<std::size_t> sizes = {1, 0, 7, 31, 32, 33, 4097};
  std::size_t bucket_elements = 600;
  int up = 8;
  int down = 8;
  int threads = 1;
  std::size_t block_elements = 128;
};

std::vector<Case> cases() {
  constexpr std::size_t kMany = 1 << 20;
  return {{.sizes = {0}},
          {.sizes = {1}},
          {.sizes = {7, 31}, .bucket_elements = 1, .up = 1, .down = 1},
          {.bucket_elements = 100, .up = 4, .down = 4},
          {.bucket_elements = kMany, .threads = 3},
          {.bucket_elements = kMany, .up = 1, .down = 1, .block_elements = 999},
          {.up = 8, .down = 4, .threads = 2},
          {.up = 4, .down = 1},
          {.up = 1, .down = 8}};
}

enum class Order { kAscending, kDescending, kRandom };

std::vector<std::size_t> in_order(std::size_t buckets, Order order,
                                  std::uint32_t seed) {
  std::vector<std::size_t> all(buckets);
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (order == Order::kDescending) std::ranges::reverse(all);
  if (order == Order::kRandom) std::ranges::shuffle(all, std::mt19937(seed));
  return all;
}

// One rank of a pipeline, what it sends in each run, and what it has taken.
class Rank {
 public:
  Rank(comm::Communicator& comm, const comm::HostGroups* groups, const Case& c,
       const Pipeline::Options& options = {}, std::vector<int> owners = {})
      : layout(test::units_of(c.sizes), {.world_size = comm.size(),
                                         .bucket_elements = c.bucket_elements,
                                         .block_elements = c.block_elements}),
        pool(c.threads),
        up{c.up},
        down{c.down},
        pipeline({comm, groups, owners}, pool, layout,
                 {up.codec(), down.codec()}, options),
        direction(options.direction) {
    for (std::size_t s = 0; s < static_cast<std::size_t>(comm.size()); ++s)
      worker_at.push_back(owners.empty() ? s % pipeline.places().workers
                                         : static_cast<std::size_t>(owners[s]));
  }

  [[nodiscard]] std::size_t worker() const {
    return worker_at[pipeline.places().own];
  }
  // Returns what a worker has of a block.
  [[nodiscard]] Floats values(std::uint32_t run, std::size_t of,
                              std::size_t b) const {
    Floats all(layout.blocks()[b].values.size);
    const auto seed = static_cast<float>(1000 * run + 100 * of + b);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = std::sin(seed + 0.7f * static_cast<float>(i));
    return all;
  }
  // Returns, in plain loops, what a run makes of a block: the mean's bytes on
  // the way up, and otherwise the record that goes down.
  [[nodiscard]] Bytes model(std::uint32_t run, Direction way,
                            std::size_t b) const {
    const Block& block = layout.blocks()[b];
    const auto record = [&](const Coder& coder, const Floats& from) {
      Bytes bytes(coder.codec().record_bytes(from.size()));
      coder.encode(from, bytes.data());
      return bytes;
    };
    if (way == kDown)
      return record(
          down,
          values(run, worker_at[static_cast<std::size_t>(block.server)], b));
    std::vector<Bytes> sent;
    std::vector<const std::uint8_t*> records;
    for (std::size_t w = 0; w < pipeline.places().workers; ++w)
      sent.push_back(record(up, values(run, w, b)));
    for (const Bytes& bytes : sent) records.push_back(bytes.data());
    const Floats mean = up.mean(records, block.values.size);
    return way == kUp ? bytes_of(mean) : record(down, mean);
  }

  RunSteps steps(std::uint32_t run, Direction way) {
    results.assign(layout.blocks().size(), {});
    times.assign(layout.blocks().size(), 0);
    arrived = 0;
    return {
        .encode =
            [=, this](std::size_t b, std::uint8_t* record) {
              (way == kDown ? down : up)
                  .encode(values(run, worker(), b), record);
            },
        .average =
            [=, this](std::size_t b, SentRecords sent, std::uint8_t* record) {
              ++arrived;
              const Floats mean = up.mean(sent, layout.blocks()[b].values.size);
              if (way == kBoth) return down.encode(mean, record);
              results[b] = bytes_of(mean);
              times[b] = 2;
            },
        .take =
            [=, this](std::size_t b, const std::uint8_t* record) {
              results[b] = copied(record, b);
              ++times[b];
              if (way == kDown) ++arrived;
            },
        .taken =
            [=, this](Range blocks) {
              for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
                ++times[b];
            }};
  }

  // If it `pauses`, it sends everything after each third bucket.
  void make_ready(const std::vector<std::size_t>& buckets, bool pauses) {
    for (std::size_t k = 0; k < buckets.size(); ++k) {
      pipeline.ready(buckets[k]);
      if (!pauses || k % 3 != 2) continue;
      std::this_thread::sleep_for(std::chrono::microseconds(50 * worker()));
      pipeline.queue_rest();
      std::size_t want = 0;
      for (std::size_t j = 0; j <= k; ++j) {
        const Bucket& of = layout.buckets()[buckets[j]];
        want += direction == kDown ? of.end_block() - of.first_block()
                                   : pipeline.places().served_of(of).size;
      }
      EXPECT_EQ(arrived, want);
    }
  }
  // Runs in this order, and expects the values of plain loops.
  void run(std::uint32_t run, Direction way, Order order = Order::kAscending,
           bool pauses = false, bool takes_late = false) {
    RunSteps begun = steps(run, way);
    RunSteps late;
    if (takes_late) std::swap(begun.take, late.take);
    if (takes_late) std::swap(begun.taken, late.taken);
    pipeline.begin(std::move(begun), way);
    make_ready(in_order(layout.buckets().size(), order, run), pauses);
    if (takes_late) pipeline.take_with(late.take, late.taken);
    pipeline.finish();
    EXPECT_FALSE(pipeline.has_begun());
    expect(run, way);
  }
  // Expects that one bucket was not taken, and all others were, once.
  void expect(std::uint32_t run, Direction way,
              std::size_t dropped = SIZE_MAX) {
    for (std::size_t k = 0; k < layout.buckets().size(); ++k)
      for (std::size_t b = layout.buckets()[k].first_block();
           b < layout.buckets()[k].end_block(); ++b) {
        const bool has = k != dropped && (way != kUp || is_own(b));
        ASSERT_EQ(times[b], has ? 2 : 0) << run << ", block " << b;
        ASSERT_EQ(results[b], has ? model(run, way, b) : Bytes()) << run;
        if (direction == kBoth && has) {
          ASSERT_EQ(copied(pipeline.result(b), b), results[b]) << run;
        }
      }
  }
  // Expects results of both ways to be this run's, or 0 before the first one.
  void expect_last(std::uint32_t run, bool is_previous = false) const {
    for (std::size_t b = 0; direction == kBoth && b < layout.blocks().size();
         ++b) {
      const Bytes want = model(run, kBoth, b);
      ASSERT_EQ(
          copied(is_previous ? pipeline.previous(b) : pipeline.result(b), b),
          run == 0 ? Bytes(want.size()) : want)
          << b;
    }
  }

  [[nodiscard]] bool is_own(std::size_t b) const {
    return static_cast<std::size_t>(layout.blocks()[b].server) ==
           pipeline.places().own;
  }
  static Bytes bytes_of(const Floats& values) {
    const auto* const first =
        reinterpret_cast<const std::uint8_t*>(values.data());
    return {first, first + values.size() * sizeof(float)};
  }
  [[nodiscard]] Bytes copied(const std::uint8_t* record, std::size_t b) const {
    const std::size_t size = layout.blocks()[b].values.size;
    return {record, record + down.codec().record_bytes(size)};
  }

  const BlockLayout layout;
  ThreadPool pool;
  Coder up, down;
  Pipeline pipeline;
  Direction direction;
  std::vector<std::size_t> worker_at;  // each place
  std::vector<Bytes> results;
  std::vector<int> times;
  std::atomic<std::size_t> arrived = 0;  // blocks, at the end of the first way
};

// (hosts, ranks of each)
class Ways : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  [[nodiscard]] static bool is_flat() { return std::get<1>(GetParam()) == 1; }
  // Calls body(comm, groups) on each rank.
  template <class Body>
  static void on_ranks(const Body& body) {
    const auto [hosts, ranks] = GetParam();
    test::run_ranks("local", hosts * ranks, [&](comm::Communicator& comm) {
      const auto groups = test::split_into_hosts(comm, std::get<1>(GetParam()));
      body(comm, is_flat() ? nullptr : &groups);
    });
  }
  static std::vector<Direction> directions() {
    if (is_flat()) return {kBoth, kUp, kDown};
    return {kBoth};
  }
};
INSTANTIATE_TEST_SUITE_P(Pipeline, Ways,
                         ::testing::Values(std::tuple(1, 1), std::tuple(2, 1),
                                           std::tuple(3, 1), std::tuple(8, 1),
                                           std::tuple(1, 2), std::tuple(3, 2),
                                           std::tuple(2, 4)));

TEST_P(Ways, GiveTheBitsOfPlainLoopsInEveryOrderOfBuckets) {
  for (const Case& c : cases())
    on_ranks([&](comm::Communicator& comm, const comm::HostGroups* groups) {
      for (const Direction way : directions()) {
        Rank rank(comm, groups, c, {.direction = way});
        std::uint32_t run = 0;
        for (const Order order :
             {Order::kAscending, Order::kDescending, Order::kRandom})
          for (const bool pauses : {false, true}) {
            rank.run(++run, way, order, pauses);
            if (way == kBoth)
              rank.run(++run, way, order, pauses, /*takes_late=*/true);
          }
        rank.pipeline.run(rank.steps(++run, way));
        rank.expect(run, way);
        if (way != kBoth) continue;
        rank.run(++run, kDown, Order::kRandom);  // Servers share their own.
        rank.run(++run, way);
      }
    });
}

TEST_P(Ways, ShowRecordsJustBeforeTheyAreSent) {
  on_ranks([&](comm::Communicator& comm, const comm::HostGroups* groups) {
    Rank rank(comm, groups, {.down = 4});
    std::vector<int> shown(rank.layout.blocks().size());
    RunSteps steps = rank.steps(1, kBoth);
    steps.encoded = [&](std::size_t b, const std::uint8_t* record) {
      Bytes want(
          rank.up.codec().record_bytes(rank.layout.blocks()[b].values.size));
      rank.up.encode(rank.values(1, rank.worker(), b), want.data());
      EXPECT_TRUE(std::ranges::equal(want, std::span(record, want.size())));
      shown[b] += 1;
    };
    steps.averaged = [&](std::size_t b, const std::uint8_t* record) {
      EXPECT_EQ(rank.copied(record, b), rank.model(1, kBoth, b));
      shown[b] += 2;
    };
    rank.pipeline.run(std::move(steps));
    for (std::size_t b = 0; b < shown.size(); ++b)
      EXPECT_EQ(shown[b], rank.is_own(b) ? 3
                          : rank.pipeline.places().has(rank.layout.blocks()[b])
                              ? 1
                              : 0);
  });
}

// A run is dropped at every number of ready buckets.
TEST_P(Ways, ADroppedRunLeavesNoTrace) {
  for (const Case& c : {Case(), Case{.up = 4}})
    on_ranks([&](comm::Communicator& comm, const comm::HostGroups* groups) {
      for (const Direction way : directions()) {
        Rank rank(comm, groups, c,
                  {.direction = way, .keeps_previous = way == kBoth});
        const std::size_t buckets = rank.layout.buckets().size();
        std::uint32_t last = 0;
        for (std::size_t ready = 0; ready <= buckets; ++ready) {
          auto order = in_order(buckets, Order::kRandom, last);
          order.resize(ready);
          rank.pipeline.begin(rank.steps(last + 1, way));
          rank.make_ready(order, /*pauses=*/c.up == 4);
          EXPECT_TRUE(rank.pipeline.has_begun());
          rank.expect_last(last);
          if (ready % 2 == 0) {  // Otherwise the next begin() drops it.
            rank.pipeline.drop();
            rank.expect_last(last);
          }
          rank.run(last + 2, way, Order::kDescending);
          rank.expect_last(last, /*is_previous=*/true);
          last += 2;
        }
        if (way != kBoth) continue;
        rank.run(last + 1, kDown);
        rank.expect_last(last - 2, /*is_previous=*/true);
      }
    });
}

// Each bucket is dropped at every time since it is ready.
TEST_P(Ways, OnlyADroppedBucketIsNotTaken) {
  on_ranks([&](comm::Communicator& comm, const comm::HostGroups* groups) {
    for (const Direction way : directions()) {
      Rank rank(comm, groups, {.up = 4}, {.direction = way});
      const std::size_t buckets = rank.layout.buckets().size();
      std::uint32_t run = 0;
      for (std::size_t ready = 1; ready <= buckets; ++ready)
        for (std::size_t at = 0; at < ready; ++at) {
          const auto order = in_order(buckets, Order::kRandom, ++run);
          rank.pipeline.begin(rank.steps(run, way));
          for (std::size_t k = 0; k < buckets; ++k) {
            rank.pipeline.ready(order[k]);
            if (k + 1 != ready) continue;
            rank.pipeline.drop(order[at]);
            rank.pipeline.drop(buckets);  // there is none
            const Bucket& dropped = rank.layout.buckets()[order[at]];
            for (std::size_t b = dropped.first_block(); b < dropped.end_block();
                 ++b) {
              rank.times[b] = 0;
              rank.results[b] = {};
            }
          }
          rank.pipeline.finish();
          rank.expect(run, way, order[at]);
          rank.run(++run, way, Order::kRandom);
        }
    }
  });
}

TEST_P(Ways, OwnersMayHaveAnyOrder) {
  if (!is_flat()) return;
  on_ranks([&](comm::Communicator& comm, const comm::HostGroups* /*groups*/) {
    std::vector<int> owners(static_cast<std::size_t>(comm.size()));
    std::iota(owners.begin(), owners.end(), 0);
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
      std::ranges::shuffle(owners, std::mt19937(seed));
      Rank rank(comm, nullptr, {}, {.direction = kDown}, owners);
      rank.run(1, kDown);
      rank.run(2, kDown, Order::kDescending, /*pauses=*/true);
    }
  });
}

TEST_P(Ways, PipelinesMayShareTheMemoryOfBuckets) {
  on_ranks([&](comm::Communicator& comm, const comm::HostGroups* groups) {
    for (const Direction way : directions()) {
      const auto memory = std::make_shared<PipelineMemory>();
      std::vector<std::unique_ptr<Rank>> all;
      for (const Case& c :
           {Case{.sizes = {7}, .up = 4},
            Case{.bucket_elements = 2000, .down = 4}, Case{.up = 1}})
        all.push_back(std::make_unique<Rank>(
            comm, groups, c,
            Pipeline::Options{.direction = way, .memory = memory}));
      for (std::uint32_t run = 1; run < 4; ++run)
        for (const auto& rank : all) rank->run(run, way, Order::kRandom);
      EXPECT_FALSE(memory->records[0].empty() && memory->received[0].empty());
    }
  });
}

}  // namespace
}  // namespace thinwire::exchange::pipeline_test
