// SPDX-License-Identifier: Apache-2.0
// These tests show which gradients leave during backward, which were late, and
// in which dtype they travel. By host they have the bits of the optimizer.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "engine/by_hand.h"
#include "support/counting_group.h"
#include "support/errors.h"
#include "support/kept_log.h"
#include "support/ranks.h"
#include "thinwire/comm/hosts.h"

namespace thinwire::engine::test::engine_exchange_test {
namespace {

using config::Hierarchy;

using test::config_of;

constexpr std::size_t kSize = 38360;  // of model_layout(): 3 buckets
constexpr std::size_t kLastBucket = kSize - 2 * 16384;

// A backward in which the named parameters are not announced.
EngineReport step_without(Sharded& driven,
                          const std::vector<std::string>& missing) {
  driven.engine.begin_backward();
  const auto parameters = driven.layout.parameters();
  for (std::size_t k = parameters.size(); k-- > 0;)
    if (std::find(missing.begin(), missing.end(), parameters[k].name) ==
        missing.end())
      driven.engine.gradient_ready(k);
  driven.engine.end_backward();
  return driven.engine.step();
}

TEST(EngineOverlap, NamesTheParameterThatWasMissing) {
  struct Case {
    std::vector<std::string> missing;
    std::size_t late_elements;
    std::string waited_for;
  };
  const std::vector<Case> cases = {{{}, 0, ""},
                                   {{"empty", "none"}, 0, ""},
                                   {{"scalar"}, 16384, "scalar"},
                                   {{"odd"}, 2 * 16384, "odd"},
                                   {{"scalar", "odd"}, 2 * 16384, "odd"},
                                   {{"wide"}, 2 * 16384, "wide"},
                                   {{"block", "wide"}, 2 * 16384, "block"},
                                   {{"last"}, kSize, "last"},
                                   {{"long", "scalar"}, kSize, "long"},
                                   {{}, 0, ""}};  // as if nothing had been
  ASSERT_EQ(model_layout().size(), kSize);
  for (const char* optimizer : {"adam", "lamb"})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded driven(comm, config_of(optimizer));
      for (const Case& c : cases) {
        // Rank 1 misses nothing: each rank speaks for itself.
        const bool misses = comm.rank() == 0;
        const auto report =
            step_without(driven, misses ? c.missing : decltype(c.missing){});
        EXPECT_EQ(report.late_elements, misses ? c.late_elements : 0);
        EXPECT_EQ(report.waited_for, misses ? c.waited_for : "");
        EXPECT_GT(report.backward_seconds, 0);
      }
    });
}

TEST(EngineOverlap, NothingIsLateWhereNothingCouldBeginEarly) {
  const auto is_silent = [](Sharded& driven, std::int64_t step) {
    const EngineReport report = driven.step({.step = step}, Order::kSilent);
    EXPECT_EQ(report.late_elements, 0u);
    EXPECT_EQ(report.waited_for, "");
  };
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Sharded alone(comm, config_of("adam"));
    is_silent(alone, 1);
  });
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded summed(comm,
                   config_of("adam", DType::kFloat32, {}, /*managed=*/false));
    is_silent(summed, 1);
    Sharded compressed(comm, config_of("onebit_adam"));
    for (std::int64_t t = 1; t <= 3; ++t) {
      EXPECT_EQ(compressed.step({.step = t}, Order::kSilent).late_elements,
                kSize);
    }
    is_silent(compressed, 4);
  });
}

// In a window of three, only the last backward sends anything.
TEST(EngineOverlap, SendsOncePerWindow) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Sharded driven(comm, config_of("adam", DType::kFloat32, 3));
    const std::uint64_t before = comm.counters().bytes_sent;
    for (std::int64_t micro = 0; micro < 2; ++micro) {
      driven.backward({1, micro});
      EXPECT_EQ(comm.counters().bytes_sent, before);
      EXPECT_EQ(driven.engine.step().bytes_sent, 0u);
    }
    driven.engine.begin_backward();
    const auto ready = [&](std::size_t k) { driven.engine.gradient_ready(k); };
    ready(7);
    EXPECT_EQ(comm.counters().bytes_sent, before);
    ready(6);
    EXPECT_EQ(comm.counters().bytes_sent - before, 4 * kLastBucket);
    for (std::size_t k = 6; k-- > 0;) ready(k);
    EXPECT_EQ(comm.counters().bytes_sent - before, 4 * kSize);
    driven.engine.end_backward();
    const EngineReport report = driven.engine.step();
    EXPECT_EQ(report.bytes_sent, 4 * kSize);
    EXPECT_EQ(report.collectives, 3u);
    EXPECT_EQ(comm.counters().bytes_sent - before, 4 * kSize);
  });
}

// Otherwise others could pass without anything being sent early.
TEST(EngineOverlap, SendsALowBitWarmUpInTheLastBackward) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Config config = config_of("onebit_adam", DType::kFloat32, 2);
    config.comm.bucket_elements = 5000;
    std::get<optim::OnebitAdamOptions>(config.optimizer).freeze.warmup_bits = 8;
    Sharded driven(comm, config);
    for (std::int64_t t = 1; t <= 5; ++t) {
      driven.step({t, 0});
      const std::uint64_t before = comm.counters().bytes_sent;
      driven.backward({t, 1});
      const std::uint64_t in_backward = comm.counters().bytes_sent - before;
      const EngineReport report = driven.engine.step();
      EXPECT_EQ(report.bytes_sent, comm.counters().bytes_sent - before);
      EXPECT_EQ(report.late_elements, 0u);
      if (t <= 3) {
        EXPECT_EQ(report.phase, optim::Phase::kExact);
        EXPECT_GT(in_backward, report.bytes_sent / 2);
      }
      (void)driven.engine.state_dict();  // throws during an exchange
    }
  });
}

TEST(EngineBytes, CountWhatBackwardSent) {
  for (const int world : {1, 3})
    for (const DType dtype : {DType::kFloat32, DType::kFloat16})
      for (const char* optimizer :
           {"adam", "lamb", "onebit_adam", "zero_one_adam"}) {
        std::atomic<std::uint64_t> total = 0;
        comm::run_local_ranks(world, [&](comm::Communicator& comm) {
          Config config = config_of(optimizer, dtype);
          config.comm.bucket_elements = 2 * 16384;
          ByHand hand(comm, config, {.bucket_elements = 2 * 16384});
          Sharded driven(comm, config);
          optim::StepReport first;
          for (std::int64_t t = 1; t <= 6; ++t) {
            const bool overflows = t == 2 && comm.rank() == 0;
            optim::StepReport want = hand.step(t, 1, 1, overflows);
            const EngineReport report =
                driven.step({.step = t, .overflows = overflows},
                            t % 2 == 0 ? Order::kPartly : Order::kReverse);
            if (t == 1) first = report;
            // Low-bit optimizers ask first whether all gradients are finite.
            // By then these have left.
            if (!want.applied && world > 1) want = first;
            EXPECT_EQ(report.bytes_sent, want.bytes_sent) << optimizer << t;
            EXPECT_EQ(report.collectives, want.collectives) << optimizer << t;
            if (t == 1 && world > 1) total += report.bytes_sent;
          }
        });
        const auto others = static_cast<std::uint64_t>(world - 1);
        const bool is_exact = optimizer[0] == 'a' || optimizer[0] == 'l';
        if (is_exact) {
          EXPECT_EQ(total.load(), 2 * others * kSize * size_of(dtype));
        }
      }
}

// fp32 gradients that travel in 16 bits are rounded before they are summed;
// what is exchanged in few bits is not.
TEST(EngineWire, RoundsExactAverages) {
  for (const int world : {1, 3})
    for (const char* optimizer : {"adam", "onebit_adam"})
      for (const DType wire : {DType::kFloat16, DType::kBFloat16})
        comm::run_local_ranks(world, [&](comm::Communicator& comm) {
          Config config = config_of(optimizer);
          config.communication_dtype = wire;
          ByHand hand(comm, config, {.bucket_elements = 16384});
          Sharded driven(comm, config);
          for (std::int64_t t = 1; t <= 5; ++t) {
            Buffer grads = test::gradient(driven.layout, comm.rank(),
                                          {.step = t}, 1, DType::kFloat32);
            Buffer rounded(grads.size(), wire);
            kernels::convert(grads.view(), rounded.view());
            const auto want = hand.optimizer->step(
                hand.params.view(),
                hand.travels() ? rounded.view() : grads.view());
            const EngineReport report = driven.step(
                {.step = t}, t == 2 ? Order::kPartly : Order::kReverse);
            EXPECT_EQ(report.bytes_sent, want.bytes_sent);
            EXPECT_EQ(report.grad_norm, want.grad_norm);
            ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view()))
                << optimizer << ", step " << t;
          }
        });
}

// Sums of fp16 gradients that travel in fp32 are not rounded at all.
TEST(EngineWire, MayBeWiderThanGradients) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Config config = config_of("adam", DType::kFloat16, 2);
    config.communication_dtype = DType::kFloat32;
    ByHand hand(comm, config, {.bucket_elements = 16384});
    Sharded driven(comm, config);
    for (std::int64_t t = 1; t <= 3; ++t) {
      std::vector<float> sum(kSize);
      for (std::int64_t micro = 0; micro < 2; ++micro) {
        const Buffer one = test::gradient(driven.layout, comm.rank(),
                                          {t, micro}, 512, DType::kFloat16);
        add_floats(sum, one.view());
      }
      const auto want = hand.optimizer->step(hand.params.view(), sum);
      for (std::int64_t micro = 0; micro < 2; ++micro)
        driven.backward({t, micro});
      EXPECT_EQ(driven.engine.step().bytes_sent, want.bytes_sent);
      ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view())) << t;
    }
  });
}

// ---- hosts

constexpr std::int64_t kSteps = 6;

Config config_of(const char* optimizer, Hierarchy hierarchy, int each = 0) {
  Config config{.optimizer = optimizer_case(optimizer),
                .gradient_clipping = 20};
  config.comm.hierarchy = hierarchy;
  config.comm.ranks_per_host = each;
  return config;
}

// Bytes that this rank sent, and of these to other hosts.
struct Sent {
  std::uint64_t bytes = 0;
  std::uint64_t between_hosts = 0;
};

// Steps of an Engine have the bits of the same ones of `exchanging`, an
// optimizer's communicator.
Sent expect_equal(comm::Communicator& comm, const Config& config,
                  comm::Communicator& exchanging) {
  ByHand hand(exchanging, config, {.max_grad_norm = 20, .num_threads = 1});
  Sharded driven(comm, config);
  Sent sent;
  for (std::int64_t t = 1; t <= kSteps; ++t) {
    hand.step(t, 1, 1, false);
    const EngineReport report = driven.step({.step = t});
    sent.bytes += report.bytes_sent;
    sent.between_hosts += report.bytes_between_hosts;
    EXPECT_GT(report.messages, 0u);
    EXPECT_EQ(floats(driven.params.view()), floats(hand.params.view()))
        << "step " << t;
  }
  return sent;
}

TEST(EngineHosts, HierarchicalExchangeHasTheBitsOfItsOptimizer) {
  for (const char* optimizer : {"adam", "onebit_adam"})
    for (const Hierarchy hierarchy : {Hierarchy::kAuto, Hierarchy::kByHost})
      comm::run_local_ranks(4, [&](comm::Communicator& comm) {
        const auto grouped =
            comm.by_host(comm::find_hosts(comm, {.ranks_per_host = 2}));
        const Sent sent =
            expect_equal(comm, config_of(optimizer, hierarchy, 2), *grouped);
        EXPECT_LT(sent.between_hosts, sent.bytes);
        EXPECT_GT(sent.between_hosts, 0u);
      });
}

TEST(EngineHosts, FlatIsAsWithoutHosts) {
  const std::vector<Config> flat = {
      config_of("onebit_adam", Hierarchy::kFlat, 2),
      config_of("onebit_adam", Hierarchy::kAuto, 1),
      config_of("onebit_adam", Hierarchy::kAuto)};  // all share one host
  for (const Config& config : flat)
    comm::run_local_ranks(
        4, [&](comm::Communicator& comm) { expect_equal(comm, config, comm); });
  const KeptLog log;
  CountingGroup group(4, 2, /*splits=*/false);
  group.run([&](comm::Communicator& comm) {
    expect_equal(comm, config_of("onebit_adam", Hierarchy::kAuto, 2), comm);
    expect_error(
        kArgument, {"by_host: the transport 'counting' has no groups"},
        [&] { Sharded(comm, config_of("adam", Hierarchy::kByHost, 2)); });
  });
  EXPECT_EQ(log.count("every rank exchanges with every other: the transport"),
            1u);
}

void expect_refused(int world, int each, std::string_view why) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    expect_error(
        kArgument, {"comm.hierarchy must be auto or flat, got by_host", why},
        [&] { Sharded(comm, config_of("adam", Hierarchy::kByHost, each)); });
    comm.barrier();  // nobody waits for anybody
  });
}

TEST(EngineHosts, ImpossibleHierarchyIsRefused) {
  expect_refused(4, 4, "all 4 ranks are on one host");
  expect_refused(4, 0, "all 4 ranks are on one host");
  expect_refused(1, 0, "every rank has a host of its own");
}

TEST(EngineHosts, TheLogSaysHowRanksExchange) {
  const KeptLog log;
  for (const int each : {2, 0})
    comm::run_local_ranks(4, [&](comm::Communicator& comm) {
      const Sharded driven(comm, config_of("adam", Hierarchy::kAuto, each));
    });
  EXPECT_EQ(log.count("hierarchical exchange: 2 hosts of 2 ranks"), 1u);
  EXPECT_EQ(log.count("every rank exchanges with every other"), 0u);
}

}  // namespace
}  // namespace thinwire::engine::test::engine_exchange_test
