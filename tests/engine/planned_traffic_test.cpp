// SPDX-License-Identifier: Apache-2.0
// What the planner says of a step's traffic, against what was handed to the
// transports: messages and rounds exactly, bytes within 1 %.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/counting_group.h"
#include "thinwire/engine/planner.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::engine {
namespace {

using test::CountingGroup;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(
    comm::Communicator&, const ParameterLayout&)>;

struct Case {
  int ranks = 2;
  std::size_t elements = 300'001;
  std::size_t bucket_elements = 65'536;
};

optim::ExchangeOptions exchange_of(const Case& c) {
  return {.bucket_elements = c.bucket_elements, .num_threads = 1};
}

// Of one step after `before` others, a mean over the ranks.
Traffic counted(const Case& c, int before, const MakeOptimizer& make) {
  CountingGroup group(c.ranks);
  std::mutex mutex;
  Traffic all;
  group.run([&](comm::Communicator& comm) {
    const auto layout = ParameterLayout::of({{"all", {c.elements}, 0}});
    std::vector<float> params(c.elements, 0.5f);
    std::vector<float> grads(c.elements);
    const auto optimizer = make(comm, layout);
    const auto step = [&] {
      // No mean is 0: a late element would have an exchange of its own.
      for (std::size_t i = 0; i < grads.size(); ++i)
        grads[i] =
            static_cast<float>(i % 7) + 0.5f + static_cast<float>(comm.rank());
      return optimizer->step(params, grads);
    };
    for (int i = 0; i < before; ++i) (void)step();
    const CountingGroup::Sent begin = group.sent_by(comm.rank());
    (void)step();
    const CountingGroup::Sent end = group.sent_by(comm.rank());
    const std::lock_guard lock(mutex);
    all.bytes += static_cast<double>(end.bytes - begin.bytes) / c.ranks;
    all.messages += static_cast<double>(end.messages - begin.messages);
    all.rounds =
        std::max(all.rounds, static_cast<double>(end.rounds - begin.rounds));
  });
  all.messages /= c.ranks;
  return all;
}

void expect_planned(Way way, const Case& c, const Traffic& counted) {
  SCOPED_TRACE(std::string(to_string(way)) + " on " + std::to_string(c.ranks) +
               " ranks, " + std::to_string(c.elements) + " elements");
  const Workload work{.parameters = static_cast<double>(c.elements),
                      .bucket_elements = static_cast<double>(c.bucket_elements),
                      .steps_per_sync = 1};
  const Traffic planned = traffic_of(way, false, work, {.ranks = c.ranks});
  EXPECT_NEAR(planned.bytes, counted.bytes, 0.01 * counted.bytes);
  EXPECT_NEAR(planned.messages, counted.messages, 1e-9 * counted.messages);
  EXPECT_EQ(planned.rounds, counted.rounds);
}

class PlannedTraffic : public testing::TestWithParam<Case> {};

TEST_P(PlannedTraffic, OfExactAveragesIsWhatIsSent) {
  const Case& c = GetParam();
  expect_planned(
      Way::kExact, c,
      counted(c, 0, [&](comm::Communicator& comm, const auto& layout) {
        return std::make_unique<optim::DataParallel>(
            comm, std::make_unique<optim::Adam>(layout, optim::AdamOptions{}),
            exchange_of(c));
      }));
}

TEST_P(PlannedTraffic, OfOnebitAdamIsWhatIsSent) {
  const Case& c = GetParam();
  expect_planned(
      Way::kOnebitAdam, c,
      counted(c, 1, [&](comm::Communicator& comm, const auto& layout) {
        return std::make_unique<optim::OnebitAdam>(
            comm, layout,
            optim::OnebitAdamOptions{.freeze_step = 1,
                                     .exchange = exchange_of(c)});
      }));
}

TEST_P(PlannedTraffic, OfASyncOfZeroOneAdamIsWhatIsSent) {
  const Case& c = GetParam();
  expect_planned(
      Way::kZeroOneAdam, c,
      counted(c, 1, [&](comm::Communicator& comm, const auto& layout) {
        return std::make_unique<optim::ZeroOneAdam>(
            comm, layout,
            optim::ZeroOneAdamOptions{.var_freeze_step = 1,
                                      .local_step_clipper = 1,
                                      .exchange = exchange_of(c)});
      }));
}

// Fewer blocks than ranks; parts of the scratch memory; a bucket with nothing
// but a block's end.
INSTANTIATE_TEST_SUITE_P(
    Worlds, PlannedTraffic,
    testing::Values(Case{2}, Case{3}, Case{4}, Case{5}, Case{6}, Case{7},
                    Case{8}, Case{8, 4097, 2048}, Case{7, 1025, 1 << 20},
                    Case{3, 1'200'000, 1 << 20}, Case{4, 33, 1 << 20},
                    Case{2, 65'537, 65'536}),
    [](const auto& c) {
      return std::to_string(c.param.ranks) + "_" +
             std::to_string(c.param.elements) + "_" +
             std::to_string(c.param.bucket_elements);
    });

}  // namespace
}  // namespace thinwire::engine
