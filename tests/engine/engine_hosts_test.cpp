// SPDX-License-Identifier: Apache-2.0
// An Engine exchanges by host where its configuration and the ranks' places
// allow it, with the bits of its optimizer on a communicator by host.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/kept_log.h"
#include "support/ranks.h"
#include "thinwire/comm/hosts.h"

namespace thinwire::engine::test::engine_hosts_test {
namespace {

using config::Hierarchy;

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
  Driven driven(comm, config);
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

TEST(EngineHosts, ExchangesByHostWithTheBitsOfItsOptimizer) {
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
}

void expect_refused(int world, int each, std::string_view why) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    const ParameterLayout layout = model_layout();
    Buffer params = Buffer::of<float>(layout.size());
    Buffer grads = Buffer::of<float>(layout.size());
    expect_error(
        ErrorCode::kInvalidArgument,
        {"comm.hierarchy must be auto or flat, got by_host", why}, [&] {
          Engine(comm, layout, config_of("adam", Hierarchy::kByHost, each),
                 params.view(), grads.view());
        });
    comm.barrier();  // nobody waits for anybody
  });
}

TEST(EngineHosts, ByHostIsRefusedWhereItCannotBe) {
  expect_refused(4, 4, "all 4 ranks are on one host");
  expect_refused(4, 0, "all 4 ranks are on one host");
  expect_refused(1, 0, "every rank has a host of its own");
}

TEST(EngineHosts, TheLogSaysHowRanksExchange) {
  const KeptLog log;
  for (const int each : {2, 0})
    comm::run_local_ranks(4, [&](comm::Communicator& comm) {
      const Driven driven(comm, config_of("adam", Hierarchy::kAuto, each));
    });
  EXPECT_EQ(log.count("hierarchical exchange: 2 hosts of 2 ranks"), 1u);
  EXPECT_EQ(log.count("every rank exchanges with every other"), 0u);
}

TEST(EngineHosts, TheLogSaysWhatIsFlatThoughRanksShareHosts) {
  const KeptLog log;
  Config config = config_of("onebit_adam", Hierarchy::kAuto, 2);
  config.gradient_clipping = 0;
  config.comm.compressed_during_backward = true;
  comm::run_local_ranks(
      4, [&](comm::Communicator& comm) { const Driven driven(comm, config); });
  EXPECT_EQ(log.count("compressed_during_backward does not exchange "
                      "hierarchically, though 2 hosts have 2 ranks each"),
            1u);
}

}  // namespace
}  // namespace thinwire::engine::test::engine_hosts_test
