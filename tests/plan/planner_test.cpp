// SPDX-License-Identifier: Apache-2.0
// The times of exchanges are those of another program that was written from the
// same description, in Python: the numbers are its results, printed in full.
// Where it is told of computing inside a host, it has time for `update` alone:
// of `encode` and `serve` it forms 1/G twice.
#include "thinwire/plan/planner.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/counting_group.h"
#include "support/errors.h"
#include "thinwire/plan/measure.h"
#include "thinwire/plan/plan_table.h"
#include "thinwire/plan/workload.h"

namespace thinwire::plan::planner_test {
namespace {

constexpr double kMicro = 1e-6;

Network network_of(int ranks, int ranks_per_host, double gbps,
                   bool is_framed = true) {
  return {.ranks = ranks,
          .ranks_per_host = ranks_per_host,
          .gbps = gbps,
          .is_framed = is_framed};
}

void expect_same(double got, double want) {
  EXPECT_NEAR(got, want, std::abs(want) * 1e-12);
}

struct OfBytes {
  Network network;
  double bytes, bucket_bytes, seconds;
};

TEST(Planner, RingsTakeAsLongAsInTheSimulation) {
  Network slow = network_of(2, 1, 0.956, false);
  slow.latency_seconds = 100 * kMicro;
  const OfBytes cases[] = {
      {slow, 1e8, 25e6, 0.8376200836820084},
      {network_of(8, 1, 10), 6.8e8, 25e6, 1.027971270718232},
      {network_of(64, 8, 10), 6.8e8, 25e6, 1.1543676795580111},
      {network_of(8, 8, 100), 1e6, 25e6, 0.000245},
      {network_of(1024, 8, 25), 6.8e8, 25e6, 0.5009983080110497}};
  for (const OfBytes& c : cases)
    expect_same(ring_seconds(c.network, c.bytes, c.bucket_bytes), c.seconds);
}

TEST(Planner, DirectAveragesTakeAsLongAsInTheSimulation) {
  const OfBytes cases[] = {
      {network_of(2, 1, 1), 1e8, 4194304, 0.85780224},
      {network_of(8, 1, 10), 6.8e8, 2097152, 1.04650208},
      {network_of(256, 8, 10), 6.8e8, 16777216, 9.0787064896},
      {network_of(3, 1, 0.1, false), 1e3, 4194304, 0.00020666666666666668}};
  for (const OfBytes& c : cases)
    expect_same(direct_seconds(c.network, c.bytes, c.bucket_bytes), c.seconds);
  const OfBytes by_host[] = {
      {network_of(16, 8, 10), 6.8e8, 16777216, 0.591607088},
      {network_of(64, 8, 100), 6.8e8, 16777216, 0.12373253759999998},
      {network_of(4, 2, 0.1), 26.4e6, 4194304, 2.4962071904}};
  for (const OfBytes& c : by_host)
    expect_same(direct_by_host_seconds(c.network, c.bytes, c.bucket_bytes),
                c.seconds);
}

TEST(Planner, CompressedExchangesTakeAsLongAsInTheSimulation) {
  Network measured = network_of(2, 1, 0.956, false);
  measured.latency_seconds = 100 * kMicro;
  Network quick = network_of(5, 1, 1);
  quick.latency_seconds = 20 * kMicro;
  quick.message_seconds = 2 * kMicro;
  const Compute cpu{.encode = .80e-9, .serve = .17e-9, .update = .73e-9};
  const Compute first{.encode = 1.2e-9, .serve = .17e-9, .update = .73e-9};
  const struct {
    Network network;
    LowBitExchange exchange;
    Compute compute;
    double backward, seconds;
  } cases[] = {
      {measured, {25165824, 1048576}, first, 0, 0.05404562497071132},
      {network_of(8, 1, 10), {340e6, 1048576}, {}, 0, 0.09803549119999865},
      {network_of(256, 1, 10), {340e6, 33554432}, {}, 0, 0.07724792},
      {network_of(64, 1, 25),
       {340e6, 10625000, 4, 4},
       {},
       0,
       0.1179937030700001},
      {network_of(2, 1, 0.1), {25.2e6, 1048576}, cpu, 1, 1.01369384816},
      {quick, {777777, 100000, 8, 4}, cpu, .01, 0.01183997086}};
  for (const auto& c : cases) {
    const Ready during = [&](std::size_t k, std::size_t count) {
      return c.backward * static_cast<double>(k + 1) /
             static_cast<double>(count);
    };
    expect_same(two_phase_seconds(c.network, c.exchange, c.compute,
                                  c.backward > 0 ? during : nullptr),
                c.seconds);
  }
}

TEST(Planner, HierarchicalExchangesTakeAsLongAsInTheSimulation) {
  const struct {
    Network network;
    LowBitExchange exchange;
    double update, seconds;
  } cases[] = {
      {network_of(16, 8, 10),
       {340e6, 10625000, 1, 1, 2},
       0,
       0.06564417846679688},
      {network_of(1024, 8, 100), {340e6, 33554432, 4, 4, 2}, 0, 0.0883380096},
      {network_of(4, 2, 0.1),
       {6.6e6, 1048576, 1, 1, 4},
       .73e-9,
       0.07373053071999999}};
  for (const auto& c : cases)
    expect_same(
        two_phase_by_host_seconds(c.network, c.exchange, {.update = c.update}),
        c.seconds);
}

// Computing that takes all the time there is: each rank encodes and serves its
// piece, and updates everything.
TEST(Planner, AHostsRanksShareEncodingAndServing) {
  Network network = network_of(4, 2, 1e6);
  network.latency_seconds = network.message_seconds = 0;
  network.inner_latency_seconds = network.inner_message_seconds = 0;
  network.inner_bytes_per_second = 1e18;
  const double n = 64e6;
  const LowBitExchange exchange{.elements = n, .bucket_elements = 1e6};
  const auto seconds = [&](const Compute& compute) {
    return two_phase_by_host_seconds(network, exchange, compute);
  };
  EXPECT_NEAR(seconds({.encode = 1e-6, .turn = 0}), n / 2 * 1e-6, 1e-3);
  EXPECT_NEAR(seconds({.serve = 1e-6, .turn = 0}), n / 2 * 1e-6, 1e-3);
  EXPECT_NEAR(seconds({.update = 1e-6, .turn = 0}), n * 1e-6, 1e-3);
}

TEST(Planner, OneRankSendsNothing) {
  const Workload work{.parameters = 1e6, .backward_seconds = 1};
  for (int way = 0; way < kNumWays; ++way) {
    const Prediction one =
        predict(static_cast<Way>(way), false, work, Network{}, Compute{});
    EXPECT_EQ(one.traffic, Traffic{});
    EXPECT_EQ(one.step_seconds, 1);
    EXPECT_EQ(one.break_even_gbps, 0);
  }
}

// On 340 M parameters in 16 bits, 16 GPUs: backward hides an exact average from
// some link on, and few bits pay below it.
TEST(Planner, BothStepsTakeEquallyLongOnTheBreakEvenLink) {
  const Workload work{.parameters = 340e6,
                      .dtype = DType::kBFloat16,
                      .forward_seconds = .036,
                      .backward_seconds = .061};
  const Compute compute{.encode = 13e-12,
                        .serve = 3e-12,
                        .update = 13e-12,
                        .norm = 4e-12,
                        .exact_update = 30e-12,
                        .local_step = 34e-12,
                        .sync_encode = 20e-12,
                        .sync_update = 16e-12};
  Network network = network_of(16, 1, 10);
  for (const Way way : {Way::kOnebitAdam, Way::kZeroOneAdam, Way::kLean}) {
    const Prediction planned = predict(way, false, work, network, compute);
    ASSERT_TRUE(std::isfinite(planned.break_even_gbps));
    ASSERT_GT(planned.break_even_gbps, 10);
    const auto gain = [&](double gbps) {
      network.gbps = gbps;
      return step_seconds(Way::kExact, false, work, network, compute) -
             step_seconds(way, false, work, network, compute);
    };
    EXPECT_GT(gain(planned.break_even_gbps * 0.99), 0);
    EXPECT_LE(gain(planned.break_even_gbps * 1.01), 0);
  }
}

// Nothing to hide behind, and computing that costs nothing: never.
TEST(Planner, WithoutABackwardExactAveragesNeverCatchUp) {
  const Workload work{.parameters = 100e6};
  EXPECT_EQ(
      predict(Way::kOnebitAdam, false, work, network_of(2, 1, 1), {.turn = 0})
          .break_even_gbps,
      std::numeric_limits<double>::infinity());
  EXPECT_EQ(
      predict(Way::kOnebitAdam, false, work, network_of(2, 1, 1), {.encode = 1})
          .break_even_gbps,
      0);
}

// Flat ways against the flat average, those by host against the one by host.
TEST(Planner, BreakEvenAgreesWithTheStepsOnTheGivenLink) {
  const Workload work{
      .parameters = 340e6, .forward_seconds = .032, .backward_seconds = .065};
  const Compute compute{.encode = .8e-9,
                        .serve = .17e-9,
                        .update = .73e-9,
                        .norm = .3e-9,
                        .exact_update = .9e-9,
                        .sum = .3e-9,
                        .local_step = 1e-9,
                        .sync_encode = 1.1e-9,
                        .sync_update = .9e-9};
  for (const double gbps : {.0005, .1, 1., 10., 25., 100., 400., 5000.}) {
    const auto all = plan(work, network_of(64, 8, gbps), compute);
    for (const Prediction& p : all) {
      if (p.way == Way::kExact) continue;
      const Prediction& exact = all[p.is_by_host ? 1 : 0];
      ASSERT_EQ(exact.is_by_host, p.is_by_host);
      if (p.step_seconds < exact.step_seconds) {
        EXPECT_GT(p.break_even_gbps, gbps) << to_string(p.way);
      } else {
        EXPECT_LE(p.break_even_gbps, gbps) << to_string(p.way);
      }
      if (p.break_even_gbps == 0 || std::isinf(p.break_even_gbps)) continue;
      const Network above = network_of(64, 8, p.break_even_gbps * 1.001);
      EXPECT_GE(step_seconds(p.way, p.is_by_host, work, above, compute),
                step_seconds(Way::kExact, p.is_by_host, work, above, compute))
          << to_string(p.way);
    }
  }
}

TEST(Planner, TheTableSaysHowOftenZeroOneAdamSyncs) {
  Workload work{.parameters = 1e6};
  const auto table = [&] {
    return plan_table(plan(work, network_of(4, 2, 1), {}));
  };
  EXPECT_NE(table().find("at one sync in 16 steps"), std::string::npos);
  work.steps_per_sync = 4;
  EXPECT_NE(table().find("at one sync in 4 steps"), std::string::npos);
}

// On links that cost nothing: what is left is computing and processors' time.
constexpr double kElements = 1e6;
Network free_network(double processor_seconds_per_byte) {
  return {.ranks = 2,
          .gbps = 1e9,
          .latency_seconds = 0,
          .message_seconds = 0,
          .processor_seconds_per_byte = processor_seconds_per_byte,
          .is_framed = false};
}

// Each of two ranks sends 4 n bytes of fp32.
TEST(Planner, CommunicationOnASharedProcessorSlowsBackwardDown) {
  Workload work{.parameters = kElements, .backward_seconds = 1};
  const double busy = 4 * kElements * 1e-7;
  const auto exact = [&] {
    return step_seconds(Way::kExact, false, work, free_network(1e-7), {});
  };
  EXPECT_NEAR(exact(), 1, 1e-6);  // on a core of its own, beside backward
  work.has_spare_core = false;
  EXPECT_NEAR(exact(), 1 + busy, 1e-6);
  work.backward_seconds = 0;
  EXPECT_NEAR(exact(), busy, 1e-6);
  work.has_spare_core = true;
  EXPECT_NEAR(exact(), busy, 1e-6);  // no link hides that
}

// A cycle of s steps has s - 1 local ones and a sync, which takes the place of
// the last.
TEST(Planner, AStepOfZeroOneAdamIsTheMeanOfACycle) {
  const Compute compute{.norm = 1e-9,
                        .local_step = 1e-6,
                        .sync_encode = 3e-6,
                        .sync_update = 4e-6,
                        .fresh = 5e-7};
  const auto step = [&](double steps_per_sync) {
    return step_seconds(Way::kZeroOneAdam, false,
                        {.parameters = kElements,
                         .forward_seconds = 2,
                         .backward_seconds = 3,
                         .steps_per_sync = steps_per_sync},
                        free_network(0), compute);
  };
  EXPECT_NEAR(step(1), 5 + 0.001 + 7, 1e-3);
  EXPECT_NEAR(step(4), 5 + 0.001 + (3 * 1 + 7 + 0.5) / 4, 1e-3);
}

TEST(Planner, VarianceStepsOfZeroOneAdamAreExact) {
  const Compute compute{.encode = 1e-9,
                        .serve = 1e-9,
                        .update = 1e-9,
                        .norm = 1e-9,
                        .exact_update = 2e-9};
  const Network network = network_of(2, 1, 1);
  Workload work{.parameters = 10e6, .backward_seconds = .1};
  const auto step = [&](Way way) {
    return step_seconds(way, false, work, network, compute);
  };
  const double exact = step(Way::kExact), onebit = step(Way::kOnebitAdam);
  work.steps_per_variance_step = 1;
  EXPECT_NEAR(step(Way::kZeroOneAdam), exact, 1e-12);
  work.steps_per_variance_step = 4;
  EXPECT_NEAR(step(Way::kZeroOneAdam), exact / 4 + onebit * 3 / 4, 1e-12);
  const std::string table = plan_table(plan(work, network, compute));
  EXPECT_NE(table.find("before its freeze, at one variance step in 4 steps"),
            std::string::npos);
}

// Matrices of 3000 x 1000: 8 (3000 + 1000) elements of factors in blocks of 64.
TEST(Planner, LowRankSendsFactorsDuringBackward) {
  const Workload work{.parameters = 30e6,
                      .forward_seconds = .02,
                      .backward_seconds = .08,
                      .matrices = 10};
  const Compute compute{
      .turn = 0, .exact_update = 1e-9, .factor = 2e-9, .product = 1e-9};
  const double factors = 10 * 8 * 4000 * (1 + 4.0 / 64);
  const auto traffic = [&](bool by_host, int ranks, int local) {
    return traffic_of(Way::kLowRank, by_host, work,
                      network_of(ranks, local, 1));
  };
  EXPECT_NEAR(traffic(false, 4, 1).bytes, 2 * .75 * factors, 200);
  EXPECT_NEAR(traffic(true, 4, 2).bytes_between_hosts, factors / 2, 200);
  EXPECT_EQ(traffic(false, 4, 1).rounds, 2 * 2 * 29);  // 29 parts
  const auto step = [&](double gbps) {
    return step_seconds(Way::kLowRank, false, work,
                        network_of(2, 1, gbps, false), compute);
  };
  EXPECT_NEAR(step(1e4), .02 + .01 + .09 + .03, 0.001);
  EXPECT_NEAR(step(1e-3), .02 + .01 + factors * 8e-6 + .03, 0.05);
  EXPECT_EQ(memory_of(Way::kLowRank, false, work, network_of(2, 1, 1)).states,
            (16 + 4. / 2) * 30e6);
}

TEST(Planner, LowRankGrowsWithItsRankWhileFactorsSave) {
  const Network network = network_of(2, 1, 1);
  const auto of = [&](int low_rank, double matrices) {
    const Workload work{.parameters = 6.6e6,
                        .backward_seconds = .08,
                        .low_rank = low_rank,
                        .matrices = matrices};
    return predict(Way::kLowRank, false, work, network,
                   {.turn = 0, .factor = 2e-7, .product = 1e-7});
  };
  const Prediction four = of(4, 32), eight = of(8, 32);
  EXPECT_EQ(name_of(four), "low rank 4");
  EXPECT_NEAR(2 * four.traffic.bytes, eight.traffic.bytes, 200);
  // Products take .3 us per element at rank 8.
  EXPECT_NEAR(eight.step_seconds, .01 + 6.6e6 * .3e-6, .1);
  EXPECT_NEAR(four.step_seconds, .01 + 6.6e6 * .15e-6, .1);
  // 2 r (a + b) < a b with b = 3 a: a matrix of 21.3 x 64 is the last for r
  // = 8.
  const double least = 8. * 8 / 3;
  const double most = 6.6e6 / (3 * least * least);
  EXPECT_TRUE(of(8, std::floor(most)).has_factors);
  for (const double matrices : {std::ceil(most), 10'000., 6.6e6}) {
    const Prediction plain = of(8, matrices);
    EXPECT_FALSE(plain.has_factors);
    EXPECT_NEAR(plain.traffic.bytes, 6.6e6 * (1 + 4. / 1024), 200);
    EXPECT_NE(plan_table(std::vector{plain}).find("travel in 8 bits"),
              std::string::npos);
  }
}

TEST(Planner, LowRankFollowsTheConfigurationsRankAndFirstSteps) {
  config::Config config;
  config.average = {.low_rank = 4, .first_steps = 3};
  Workload work = workload_of(config, 2, {.parameters = 1e7});
  EXPECT_EQ(work.low_rank, 4);
  work = workload_of_run(work, 1000, {}, {}, &config);
  const Network network = network_of(2, 1, 1);
  const auto bytes = [&](Way way) {
    return traffic_of(way, false, work, network).bytes;
  };
  const auto run_bytes = [&] {
    return planned_run(Way::kLowRank, false, work, network, {}).bytes;
  };
  EXPECT_NEAR(run_bytes(),
              3 * bytes(Way::kDdpHook) + 997 * bytes(Way::kLowRank), 1);
  work.run->first_low_rank_steps = 0;
  EXPECT_NEAR(run_bytes(), 1000 * bytes(Way::kLowRank), 1);
  EXPECT_EQ(workload_of(config::Config(), 2, {.parameters = 1e7}).low_rank, 8);
}

TEST(Planner, LowRankIsTheFastestOfLargeModelsOnly) {
  for (const double parameters : {1e6, 10e6}) {
    Workload work{.parameters = parameters, .backward_seconds = .01};
    work.run = RunStages{.steps = 1000, .freeze_step = 200};
    const auto all = plan(work, network_of(2, 1, .01), Compute{});
    EXPECT_EQ(fastest(all).way == Way::kLowRank, parameters > 5e6);
    EXPECT_EQ(
        plan_table(all).find("below 5e+06 parameters") == std::string::npos,
        parameters > 5e6);
    // Fifty first steps over 4 bits.
    const auto of = [&](Way way) {
      return traffic_of(way, false, work, network_of(2, 1, .01)).bytes;
    };
    const auto low_rank =
        std::ranges::find(all, Way::kLowRank, &Prediction::way);
    EXPECT_NEAR(low_rank->run->bytes,
                50 * of(Way::kDdpHook) + 950 * of(Way::kLowRank), 1);
  }
}

// A slow link: both averages run beside backward, from an eighth of it on.
TEST(Planner, TorchsDdpAndItsHookAverageDuringBackward) {
  Workload work{
      .parameters = 10e6, .forward_seconds = .02, .backward_seconds = .08};
  const Compute compute{.turn = 0, .exact_update = 1e-9};
  const auto step = [&](Way way, double gbps) {
    return step_seconds(way, false, work, network_of(2, 1, gbps, false),
                        compute);
  };
  // 40 MB of fp32 in a ring, 5 MB of 4 bits, with scales of records.
  EXPECT_NEAR(step(Way::kTorchDdp, 0.1), .02 + .01 + 3.2 + .01, 0.01);
  EXPECT_NEAR(step(Way::kDdpHook, 0.1), .02 + .01 + .4 + .01, 0.01);
  EXPECT_NEAR(step(Way::kTorchDdp, 1e4), .02 + .08 + .01 + .01, 0.02);
  const auto traffic = [&](Way way, int ranks, int local) {
    return traffic_of(way, false, work, network_of(ranks, local, 1));
  };
  EXPECT_EQ(traffic(Way::kTorchDdp, 4, 1).bytes, 2 * .75 * 40e6);
  EXPECT_EQ(traffic(Way::kTorchDdp, 4, 2).bytes_between_hosts, .75 * 40e6);
  EXPECT_EQ(traffic(Way::kTorchDdp, 4, 1).rounds, 2 * 3 * 2);
  EXPECT_NEAR(traffic(Way::kDdpHook, 4, 1).bytes,
              2 * .75 * (5e6 + 4 * 10e6 / 1024), 100);
  // One bucket of gradients more; residuals of two servers.
  const Network two = network_of(2, 1, 1);
  EXPECT_EQ(memory_of(Way::kTorchDdp, false, work, two).total(), 20 * 10e6);
  EXPECT_EQ(memory_of(Way::kDdpHook, false, work, two).states, 14 * 10e6);
  thinwire::test::expect_invalid({"by_host", "torch's DDP"}, [&] {
    static_cast<void>(
        predict(Way::kTorchDdp, true, work, network_of(4, 2, 1), compute));
  });
}

// All rounds of a measurement wait for processors that others use, so the
// rounds agree. Single calls were quicker.
TEST(Planner, SpreadsShowThatOthersUseTheProcessors) {
  thinwire::test::CountingGroup group(2);
  group.before_exchange = [](std::uint64_t call) {
    if (call % 10 != 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  group.run([&](comm::Communicator& comm) {
    const MeasuredNetwork network = measure_network(comm, {.size = 2});
    EXPECT_GT(network.spread.latency, 0.5);
    EXPECT_NE(unstable(network).find("latency"), std::string::npos);
  });
}

// A slow link: gradients go up beside backward, parameters down after it.
TEST(Planner, ZeroSendsUpDuringBackwardAndDownDuringTheUpdate) {
  Workload work{.parameters = 10e6, .backward_seconds = .08};
  const Compute compute{.exact_update = 1e-9};
  const auto step = [&](Way way, double gbps) {
    return step_seconds(way, false, work, network_of(2, 1, gbps, false),
                        compute);
  };
  // 40 MB of fp32 and 5 MB of 4 bits in all, half of them each way; scales of
  // records and norms of cells on top.
  EXPECT_NEAR(step(Way::kZero, 0.1), .01 + 1.6 + 1.6, 0.02);
  EXPECT_NEAR(step(Way::kZero4, 0.1), .01 + .2 + .2, 0.02);
  EXPECT_NEAR(step(Way::kZero8, 0.1), .01 + .4 + .4, 0.02);
  // A quick one: backward and the owners' updates alone.
  EXPECT_NEAR(step(Way::kZero, 1e4), .08 + .005, 0.002);
  EXPECT_NEAR(step(Way::kZero4, 1e4), .08 + .005, 0.002);
}

// Two thirds of what is sent goes up, where two backwards send it, the second
// one beside its half of the computing.
TEST(Planner, EachBackwardOfExactZeroSendsItsGradients) {
  Workload work{.parameters = 10e6, .backward_seconds = .08};
  const auto step = [&](Way way, double backwards) {
    work.backwards = backwards;
    return step_seconds(way, false, work, network_of(2, 1, 0.1, false), {});
  };
  EXPECT_NEAR(step(Way::kZero, 2) - step(Way::kZero, 1), .01 + 1.6, 0.02);
  EXPECT_NEAR(step(Way::kZero4, 2) - step(Way::kZero4, 1), .08, 1e-9);
  EXPECT_NEAR(step(Way::kExact, 2) - step(Way::kExact, 1), .08, 1e-9);
}

TEST(Planner, ReduceBucketSizeBoundsOnlyZerosBuckets) {
  const auto of = [](std::int64_t bucket_elements, std::int64_t bound) {
    config::Config config;
    config.comm.bucket_elements = static_cast<std::size_t>(bucket_elements);
    config.zero = {.stage = 2, .reduce_bucket_size = bound};
    return workload_of(config, 4, {.parameters = 1e6});
  };
  const auto traffic = [](Way way, const Workload& work) {
    return traffic_of(way, false, work, network_of(4, 1, 1));
  };
  for (const Way way : {Way::kZero, Way::kZero8, Way::kZero4}) {
    const Traffic small = traffic(way, of(50'000, 500'000));
    EXPECT_EQ(traffic(way, of(0, 50'000)), small);
    EXPECT_EQ(traffic(way, of(100'000, 50'000)), small);
    EXPECT_NE(traffic(way, of(0, 500'000)), small);
  }
  EXPECT_EQ(traffic(Way::kExact, of(0, 50'000)),
            traffic(Way::kExact, of(0, 500'000)));
}

TEST(Planner, PlansEveryWayFlatAndHierarchical) {
  const Workload work{.parameters = 1e6};
  EXPECT_EQ(plan(work, network_of(4, 1, 1), {}).size(), 11u);
  EXPECT_EQ(plan(work, network_of(4, 4, 1), {}).size(), 11u);
  std::vector<std::pair<Way, bool>> expected;
  for (int way = 0; way < kNumWays; ++way)
    for (const bool by_host : {false, true})
      if (!by_host || static_cast<Way>(way) != Way::kTorchDdp)
        expected.emplace_back(static_cast<Way>(way), by_host);
  std::vector<std::pair<Way, bool>> planned;
  for (const Prediction& one : plan(work, network_of(4, 2, 1), {}))
    planned.emplace_back(one.way, one.is_by_host);
  EXPECT_EQ(planned, expected);
}

// Bytes per element as the pages of the algorithms say.
TEST(Planner, MemoryEqualsTheTables) {
  const double n = 340e6;
  Workload work{.parameters = n, .dtype = DType::kBFloat16};
  const Network network = network_of(8, 4, 10);
  const auto states = [&](Way way, bool by_host) {
    return memory_of(way, by_host, work, network).states / n;
  };
  EXPECT_NEAR(states(Way::kExact, false), 12, 0.01);
  EXPECT_NEAR(states(Way::kOnebitAdam, false), 12.13 + 4. / 8, 0.02);
  EXPECT_NEAR(states(Way::kOnebitAdam, true), 8.13 + 4. / 4 + 4. / 8, 0.02);
  EXPECT_NEAR(states(Way::kZeroOneAdam, false), 24.13 + 4. / 8, 0.02);
  EXPECT_NEAR(states(Way::kZero, false), 12. / 8, 0.01);
  EXPECT_NEAR(states(Way::kZero4, false), 2 + 12. / 8, 0.01);
  EXPECT_NEAR(states(Way::kZero8, false), 2 + 12. / 8, 0.01);
  EXPECT_NEAR(states(Way::kLean, false), 2 + .13 + 1.01 + 2 + 2. / 8, 0.02);
  EXPECT_NEAR(states(Way::kLean, true), 2 + .13 + 1.01 + 2. / 4 + 2. / 8, 0.02);
  for (const Way way : {Way::kOnebitAdam, Way::kLean}) {  // means of a host
    const auto gradients = [&](bool by_host) {
      return memory_of(way, by_host, work, network).gradients / n;
    };
    EXPECT_NEAR(gradients(false), 2, 0.01);
    EXPECT_NEAR(gradients(true), 2 + 4. / 4, 0.01);
  }
  EXPECT_NEAR(memory_of(Way::kZero, false, work, network).gradients / n, 2. / 8,
              0.01);
  const PlannedMemory zero = memory_of(Way::kZero4, false, work, network);
  EXPECT_NEAR(zero.gradients / n, 4. / 8, 0.01);
  EXPECT_NEAR(zero.parameters / n, 2, 0.01);
  work.dtype = DType::kFloat32;
  EXPECT_NEAR(states(Way::kExact, false), 8, 0.01);
  EXPECT_NEAR(states(Way::kZero, false), 8. / 8, 0.01);
  EXPECT_NEAR(states(Way::kOnebitAdam, false), 8.13 + 4. / 8, 0.02);
  EXPECT_NEAR(states(Way::kLean, false), .13 + 1.01 + 2 + 2. / 8, 0.02);
}

TEST(Planner, RefusesValuesOutOfRange) {
  const struct {
    Workload work;
    Network network;
    const char* text;
  } cases[] = {{{.parameters = 1e6},
                {.ranks = 4, .ranks_per_host = 3},
                "ranks_per_host must be a divisor of 4"},
               {{.parameters = 1e6}, {.gbps = 0}, "gbps must be finite and"},
               {{.parameters = 1e6},
                {.processor_seconds_per_byte = -1},
                "processor_seconds_per_byte must be"},
               {{}, {}, "parameters must be >= 1"},
               {{.parameters = 1e6, .backwards = 0},
                {},
                "backwards must be finite and >= 1"},
               {{.parameters = 1e6, .steps_per_sync = 0.5},
                {},
                "steps_per_sync must be finite and >= 1, got 0.5"},
               {{.parameters = 1e6, .steps_per_variance_step = 0.5},
                {},
                "steps_per_variance_step must be 0, or finite"},
               {{.parameters = 1e6, .low_rank = 65},
                {},
                "low_rank must be in [1, 64], got 65"},
               {{.parameters = 1e6, .matrices = 1e6 + 1},
                {},
                "matrices must be at most the parameters"}};
  for (const auto& c : cases)
    test::expect_invalid({c.text}, [&] { (void)plan(c.work, c.network, {}); });
  test::expect_invalid({"by_host must be false without"}, [&] {
    (void)predict(Way::kExact, true, {.parameters = 1e6}, network_of(4, 4, 1),
                  {});
  });
}

}  // namespace
}  // namespace thinwire::plan::planner_test
