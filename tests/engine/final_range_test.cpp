// SPDX-License-Identifier: Apache-2.0
// A step says which parameters are final while it still updates others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/by_hand.h"
#include "support/ranks.h"
#include "support/same_bits.h"

namespace thinwire::engine::test::final_range_test {
namespace {

constexpr int kSteps = 9;
constexpr int kBrokenStep = 4;

// Parameters end beside buckets, which have 2048 elements; the last one is
// fp32 beside others of 16 bits.
ParameterLayout layout_of_model() {
  return ParameterLayout::of({{"first", {33, 65}, 0},
                              {"none", {0}, 0},
                              {"one", {1}, 1},
                              {"large", {4097}, 1},
                              {"last", {31}, 0}},
                             2);
}

struct Case {
  std::string name;
  Config config;
  int first_by_bucket = 1;  // a step; before it there may be fewer ranges
  int worlds = 1;           // the smallest world of which that is so
  int ranks_per_host = 1;
  bool has_wide = false;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, config::OptimizerConfig of,
                       int first_by_bucket = 1, int worlds = 1) -> Case& {
    Config config{.optimizer = std::move(of)};
    config.comm.bucket_elements = 2048;
    all.push_back({name, config, first_by_bucket, worlds});
    return all.back();
  };
  const optim::AdamOptions adam{.learning_rate = 0.01};
  const auto never = kSteps + 1;
  const optim::OnebitAdamOptions onebit{.learning_rate = 0.01,
                                        .freeze = {.step = 2}};
  add("Adam", adam);
  add("Adam, fp16", adam).config.precision.dtype = DType::kFloat16;
  Case& wide = add("Adam, bf16 beside fp32", adam);
  wide.config.precision.dtype = DType::kBFloat16;
  wide.has_wide = true;
  add("LAMB", optim::LambOptions{.learning_rate = 0.01}, never);
  add("1-bit Adam", onebit);
  add("1-bit Adam, fp16", onebit).config.precision.dtype = DType::kFloat16;
  add("1-bit Adam, hierarchical", onebit).ranks_per_host = 2;
  add("1-bit Adam, under the next step", onebit)
      .config.comm.compressed_under_next_step = true;
  optim::OnebitAdamOptions exact = onebit;
  exact.groups.resize(2);
  exact.groups[0].non_freeze = true;
  add("1-bit Adam, an exact group", exact);
  add("1-bit LAMB",
      optim::OnebitLambOptions{.learning_rate = 0.01, .freeze = {.step = 2}},
      3);
  add("0/1 Adam",
      optim::ZeroOneAdamOptions{.learning_rate = 0.01, .var_freeze_step = 3}, 1,
      2);
  add("0/1 Adam, bf16",
      optim::ZeroOneAdamOptions{.learning_rate = 0.01, .var_freeze_step = 3}, 1,
      2)
      .config.precision.dtype = DType::kBFloat16;
  add("lean 1-bit Adam",
      lean::LeanOnebitAdamOptions{.learning_rate = 0.01, .freeze = {.step = 2}},
      3)
      .config.precision.dtype = DType::kBFloat16;
  for (const int stage : {1, 2}) {
    const std::string of = "ZeRO-" + std::to_string(stage);
    add(of, adam).config.zero.stage = stage;
    Case& narrow = add(of + ", fp16 beside fp32", adam);
    narrow.config.zero.stage = stage;
    narrow.config.precision.dtype = DType::kFloat16;
    narrow.has_wide = true;
    Case& low_bit = add(of + ", 4 bits", adam);
    low_bit.config.zero.stage = stage;
    low_bit.config.zero.wire = {.bits_up = 4, .bits_down = 8};
    Case& hosts = add(of + ", 4 bits, hierarchical", adam);
    hosts.config.zero = low_bit.config.zero;
    hosts.ranks_per_host = 2;
    add(of + ", LAMB", optim::LambOptions{.learning_rate = 0.01})
        .config.zero.stage = stage;
  }
  return all;
}

Config config_of(const Case& which) {
  Config config = which.config;
  config.comm.ranks_per_host = which.ranks_per_host;
  return config;
}

struct Trained : Sharded {
  Trained(comm::Communicator& c, const Case& which)
      : Sharded(c, config_of(which),
                {.layout = layout_of_model(),
                 .num_wide = which.has_wide ? 1U : 0U}) {}

  void backward(int t) {
    Sharded::backward(
        {t, 0, t == kBrokenStep && comm.rank() == comm.size() - 1});
  }
  // Values of a range as fp32, which every dtype here keeps.
  [[nodiscard]] std::vector<float> values_in(Range range) {
    return floats(all_params().subview(range.offset, range.size));
  }
};

struct Notice {
  Range range;
  std::vector<float> values;
};

void expect_final(Trained& trained, std::vector<Notice> notices) {
  std::ranges::sort(notices, {},
                    [](const Notice& notice) { return notice.range.offset; });
  std::size_t end = 0;
  for (const Notice& notice : notices) {
    EXPECT_LE(end, notice.range.offset);
    end = notice.range.end();
    EXPECT_TRUE(same_bytes(notice.values, trained.values_in(notice.range)))
        << "elements " << notice.range.offset << " to " << end
        << " have changed since";
  }
  EXPECT_LE(end, trained.layout.size());
}

void train(comm::Communicator& comm, const Case& which) {
  Trained heard(comm, which);
  Trained unheard(comm, which);
  const auto whole = Range{0, heard.layout.size()};
  for (int t = 1; t <= kSteps; ++t) {
    SCOPED_TRACE("step " + std::to_string(t));
    heard.backward(t);
    unheard.backward(t);
    std::vector<Notice> notices;
    const EngineReport report = heard.engine.step([&](Range range) {
      notices.push_back({range, heard.values_in(range)});
    });
    EXPECT_EQ(report.applied, unheard.engine.step().applied);
    EXPECT_TRUE(same_bytes(heard.values_in(whole), unheard.values_in(whole)));
    EXPECT_TRUE(report.applied || notices.empty());
    if (report.applied && comm.size() >= which.worlds &&
        t >= which.first_by_bucket) {
      std::size_t told = 0;
      for (const Notice& notice : notices) told += notice.range.size;
      EXPECT_EQ(told, whole.size);
      EXPECT_GE(notices.size(), 3U);
    }
    expect_final(heard, std::move(notices));
  }
}

TEST(FinalRanges, AreFinalAndCoverAllParametersBucketByBucket) {
  for (const Case& which : cases())
    for (const int world : {1, 2, 3, 4}) {
      if (world % which.ranks_per_host != 0) continue;
      SCOPED_TRACE(which.name + " on " + std::to_string(world) + " ranks");
      run_ranks("local", world,
                [&](comm::Communicator& comm) { train(comm, which); });
    }
}

}  // namespace
}  // namespace thinwire::engine::test::final_range_test
