// SPDX-License-Identifier: Apache-2.0
// What the planner says of a step's traffic, against what was handed to the
// transports: messages, rounds and bytes between hosts exactly, bytes within
// 1 %.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/counting_group.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/lean/lean_onebit_adam.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/zero_one_adam.h"
#include "thinwire/outer/outer_loop.h"
#include "thinwire/plan/planner.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::plan::planned_traffic_test {
namespace {

using test::CountingGroup;

struct Case {
  int ranks = 2;
  int ranks_per_host = 1;  // 1: flat
  std::size_t elements = 300'001;
  std::size_t bucket_elements = 65'536;
  int backwards = 1;  // of a step; more only with ZeRO

  [[nodiscard]] bool by_host() const { return ranks_per_host > 1; }
};

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(
    comm::Communicator&, const ParameterLayout&, View params)>;

optim::ExchangeOptions exchange_of(const Case& c) {
  return {.bucket_elements = c.bucket_elements, .num_threads = 1};
}

// Steps of one rank, and what the last one sent.
CountingGroup::Sent sent_in_step(CountingGroup& group, comm::Communicator& comm,
                                 const Case& c, int before,
                                 const MakeOptimizer& make) {
  const auto layout = ParameterLayout::of({{"all", {c.elements}, 0}});
  std::vector<float> params(c.elements, 0.5f);
  std::vector<float> grads(c.elements);
  const View view(params.data(), params.size(), DType::kFloat32);
  const auto optimizer = make(comm, layout, view);
  const auto step = [&] {
    // No mean is 0: a late element would have an exchange of its own.
    for (std::size_t i = 0; i < grads.size(); ++i)
      grads[i] =
          static_cast<float>(i % 7) + 0.5f + static_cast<float>(comm.rank());
    auto* sharded = dynamic_cast<zero::ShardedOptimizer*>(optimizer.get());
    if (sharded == nullptr || c.backwards == 1)
      return optimizer->step(params, grads);
    for (int i = 0; i < c.backwards; ++i) {
      sharded->gradients().begin(
          {.is_first = i == 0, .is_last = i + 1 == c.backwards});
      sharded->gradients().collect(
          0, ConstView(grads.data(), grads.size(), DType::kFloat32));
      sharded->gradients().end();
    }
    return sharded->step();
  };
  for (int i = 0; i < before; ++i) (void)step();
  const CountingGroup::Sent begin = group.sent_by(comm.rank());
  EXPECT_TRUE(step().applied);
  const CountingGroup::Sent end = group.sent_by(comm.rank());
  return {end.bytes - begin.bytes,
          end.bytes_between_hosts - begin.bytes_between_hosts,
          end.messages - begin.messages, end.rounds - begin.rounds};
}

// Of one step after `before` others, a mean over the ranks.
Traffic counted(const Case& c, int before, const MakeOptimizer& make) {
  CountingGroup group(c.ranks, c.ranks_per_host);
  std::mutex mutex;
  Traffic all;
  group.run([&](comm::Communicator& flat) {
    const auto comm = flat.by_host(
        comm::find_hosts(flat, {.ranks_per_host = c.ranks_per_host}));
    const CountingGroup::Sent sent =
        sent_in_step(group, *comm, c, before, make);
    const std::lock_guard lock(mutex);
    all.bytes += static_cast<double>(sent.bytes) / c.ranks;
    all.bytes_between_hosts += static_cast<double>(sent.bytes_between_hosts);
    all.messages += static_cast<double>(sent.messages);
    all.rounds = std::max(all.rounds, static_cast<double>(sent.rounds));
  });
  all.bytes_between_hosts /= c.ranks;
  all.messages /= c.ranks;
  return all;
}

Traffic planned_for(Way way, const Case& c, double steps_per_variance_step) {
  return traffic_of(way, c.by_host(),
                    {.parameters = static_cast<double>(c.elements),
                     .backwards = static_cast<double>(c.backwards),
                     .bucket_elements = static_cast<double>(c.bucket_elements),
                     .steps_per_sync = 1,
                     .steps_per_variance_step = steps_per_variance_step,
                     .steps_per_outer_sync = 1},
                    {.ranks = c.ranks, .ranks_per_host = c.ranks_per_host});
}

void expect_planned(Way way, const Case& c, const Traffic& counted,
                    double steps_per_variance_step = 0) {
  SCOPED_TRACE(to_string(way));
  const Traffic planned = planned_for(way, c, steps_per_variance_step);
  EXPECT_NEAR(planned.bytes, counted.bytes, 0.01 * counted.bytes);
  // More ranks than 8 gather little in steps, of which the planner takes ZeRO's
  // norms to be divided equally.
  EXPECT_NEAR(planned.bytes_between_hosts, counted.bytes_between_hosts,
              (c.ranks > 8 ? 0.01 : 1e-9) * counted.bytes_between_hosts);
  EXPECT_NEAR(planned.messages, counted.messages, 1e-9 * counted.messages);
  EXPECT_EQ(planned.rounds, counted.rounds);
}

// All but the messages.
void expect_planned_bytes(Way way, const Case& c, const Traffic& counted,
                          double more = 0) {
  const Traffic planned = planned_for(way, c, 0);
  EXPECT_NEAR(planned.bytes, counted.bytes, 0.01 * counted.bytes + more);
  EXPECT_NEAR(planned.bytes_between_hosts, counted.bytes_between_hosts,
              0.01 * counted.bytes_between_hosts + more);
}

std::unique_ptr<optim::Optimizer> zero(comm::Communicator& comm,
                                       const ParameterLayout& layout,
                                       View params, const Case& c, int bits) {
  return std::make_unique<zero::ZeroOptimizer>(
      comm, layout,
      [](const ParameterLayout& shard) {
        return std::make_unique<optim::Adam>(shard, optim::AdamOptions{});
      },
      params,
      zero::ZeroOptions{
          .stage = 2,
          .exchange = exchange_of(c),
          .wire = {.bits_up = bits,
                   .bits_down = bits,
                   .residual_dtype =
                       c.backwards > 1 ? DType::kFloat32 : DType::kBFloat16}});
}

class PlannedTraffic : public testing::TestWithParam<Case> {};

TEST_P(PlannedTraffic, OfExactAveragesEqualsTheBytesSent) {
  const Case& c = GetParam();
  expect_planned(
      Way::kExact, c,
      counted(c, 0, [&](comm::Communicator& comm, const auto& layout, View) {
        return std::make_unique<optim::DataParallel>(
            comm, std::make_unique<optim::Adam>(layout, optim::AdamOptions{}),
            exchange_of(c));
      }));
}

TEST_P(PlannedTraffic, OfOnebitAdamEqualsTheBytesSent) {
  const Case& c = GetParam();
  expect_planned(
      Way::kOnebitAdam, c,
      counted(c, 1, [&](comm::Communicator& comm, const auto& layout, View) {
        return std::make_unique<optim::OnebitAdam>(
            comm, layout,
            optim::OnebitAdamOptions{
                .freeze = {.step = 1},
                .compression = {.exchange = exchange_of(c)}});
      }));
}

// A sync after the freeze, and a variance step.
TEST_P(PlannedTraffic, OfZeroOneAdamEqualsTheBytesSent) {
  const Case& c = GetParam();
  for (const int variance_steps : {0, 1}) {
    const optim::ZeroOneAdamOptions options{
        .var_freeze_step = variance_steps == 0 ? 1 : 10,
        .local_step_clipper = 1,
        .compression = {.exchange = exchange_of(c)}};
    expect_planned(
        Way::kZeroOneAdam, c,
        counted(c, 1 - variance_steps,
                [&](comm::Communicator& comm, const auto& layout, View) {
                  return std::make_unique<optim::ZeroOneAdam>(comm, layout,
                                                              options);
                }),
        variance_steps);
  }
}

// In full precision each backward sends its gradients; over few bits each does
// so inside its host, and the last one alone between hosts.
TEST_P(PlannedTraffic, OfZeroEqualsTheBytesSent) {
  Case c = GetParam();
  for (const int backwards : {1, 3}) {
    c.backwards = backwards;
    for (const auto& [way, bits] :
         {std::pair(Way::kZero, 0), {Way::kZero8, 8}, {Way::kZero4, 4}})
      expect_planned(way, c,
                     counted(c, 1,
                             [&, bits = bits](comm::Communicator& comm,
                                              const auto& layout, View params) {
                               return zero(comm, layout, params, c, bits);
                             }));
  }
}

TEST_P(PlannedTraffic, OfLeanOnebitAdamEqualsTheBytesSent) {
  const Case& c = GetParam();
  const Traffic sent = counted(
      c, 1, [&](comm::Communicator& comm, const auto& layout, View params) {
        return std::make_unique<lean::LeanOnebitAdam>(
            comm, layout, params,
            lean::LeanOnebitAdamOptions{
                .freeze = {.step = 1},
                .compression = {.exchange = exchange_of(c)}});
      });
  if (!c.by_host()) return expect_planned(Way::kLean, c, sent);
  expect_planned_bytes(Way::kLean, c, sent);
}

// The second agreement is ZeRO's all-reduce of one integer.
TEST_P(PlannedTraffic, OfAnOuterSyncEqualsTheBytesSent) {
  const Case& c = GetParam();
  const Traffic sent =
      counted(c, 0, [&](comm::Communicator& comm, const auto& layout, View) {
        return std::make_unique<outer::OuterLoop>(
            comm, layout,
            [&](comm::Communicator& alone) {
              return std::make_unique<optim::DataParallel>(
                  alone,
                  std::make_unique<optim::Adam>(layout, optim::AdamOptions{}));
            },
            outer::OuterOptions{.sync_every = 1}, exchange_of(c));
      });
  expect_planned_bytes(Way::kOuter, c, sent, 64);
}

std::string name_of(const testing::TestParamInfo<Case>& c) {
  std::string text = std::to_string(c.param.ranks);
  if (c.param.by_host())
    text += "_by_" + std::to_string(c.param.ranks_per_host);
  return text + "_" + std::to_string(c.param.elements) + "_" +
         std::to_string(c.param.bucket_elements);
}

// Fewer blocks than ranks; parts of the scratch memory; a bucket with nothing
// but a block's end.
INSTANTIATE_TEST_SUITE_P(
    Worlds, PlannedTraffic,
    testing::Values(Case{2}, Case{3}, Case{4}, Case{5}, Case{6}, Case{7},
                    Case{8}, Case{8, 1, 4097, 2048}, Case{7, 1, 1025, 1 << 20},
                    Case{3, 1, 1'200'000, 1 << 20}, Case{4, 1, 33, 1 << 20},
                    Case{2, 1, 65'537, 65'536}),
    name_of);

// 2 x 2, 2 x 4, 4 x 2 and 3 x 2. In small buckets parameters and records go
// straight to all ranks; in large ones sums take slices of the scratch memory.
INSTANTIATE_TEST_SUITE_P(
    Hosts, PlannedTraffic,
    testing::Values(Case{4, 2}, Case{8, 4}, Case{8, 2}, Case{6, 2},
                    Case{4, 2, 600'001, 262'144}, Case{8, 4, 600'001, 262'144},
                    Case{8, 2, 600'001, 262'144}, Case{4, 2, 30'000, 8192},
                    Case{4, 2, 2'200'000, 1 << 22}, Case{4, 2, 1025, 1 << 20},
                    Case{8, 2, 20'000, 8192}, Case{4, 2, 33, 1 << 20}),
    name_of);

// More ranks than gather few bytes straight.
INSTANTIATE_TEST_SUITE_P(ManyRanks, PlannedTraffic,
                         testing::Values(Case{12, 1, 60'000, 16'384},
                                         Case{12, 2, 60'000, 16'384},
                                         Case{16, 4, 60'000, 16'384}),
                         name_of);

}  // namespace
}  // namespace thinwire::plan::planned_traffic_test
