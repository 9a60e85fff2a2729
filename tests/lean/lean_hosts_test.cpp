// SPDX-License-Identifier: Apache-2.0
// Lean 1-bit Adam by host: a host is one worker that has the mean of its ranks'
// gradients.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "lean/lean_plain.h"
#include "lean/lean_support.h"
#include "optim/low_bit/late_cases.h"
#include "support/errors.h"
#include "support/sanitizers.h"
#include "thinwire/core/memory.h"

namespace thinwire::lean::lean_hosts_test {
namespace {

using test::LeanRanks;
using test::LeanRun;
using test::LeanVariant;
using test::named_gradients;
using test::NamedGradients;
using test::Placing;
using test::run_lean_ranks;
using Options = LeanOnebitAdamOptions;

constexpr DType kB16 = DType::kBFloat16;

std::vector<LeanRanks> all_ranks() {
  return test::fewer_if_sanitized<LeanRanks>(
      {{4, 2}, {6, 3, Placing::kRoundRobin}, {8, 4}}, 2);
}

std::string ranks_name(const ::testing::TestParamInfo<LeanRanks>& tested) {
  return tested.param.name();
}

// ---- against plain loops

// Some of those that flat runs have, the first ones with three buckets.
std::vector<LeanVariant> variants() {
  const auto all = test::lean_variants();
  std::vector<LeanVariant> chosen;
  for (const LeanVariant& of : all)
    for (const std::string_view name :
         {"plain", "bf16_four_bits", "fp32_residuals", "masks", "clipped",
          "lagged", "verified", "small_buckets", "threads"})
      if (of.name == name) chosen.push_back(of);
  // Not clipped: ZeRO-1 averages what calibrates the norm in 16 bits.
  chosen.insert(chosen.begin(), {.name = "bf16_gradients",
                                 .dtype = kB16,
                                 .options = chosen[0].options,
                                 .gradients = kB16});
  for (std::size_t v = 0; v < 3; ++v)
    chosen[v].options.compression.exchange.bucket_elements = 2048;
  return chosen;
}

class LeanHostsPlainLoops
    : public ::testing::TestWithParam<
          std::tuple<LeanRanks, NamedGradients, LeanVariant>> {};
std::string case_name(
    const ::testing::TestParamInfo<LeanHostsPlainLoops::ParamType>& tested) {
  const auto& [ranks, gradients, variant] = tested.param;
  return fmt::format("{}_{}_{}", variant.name, gradients.name, ranks.name());
}
INSTANTIATE_TEST_SUITE_P(
    All, LeanHostsPlainLoops,
    ::testing::Combine(::testing::Values(all_ranks()[0]),
                       ::testing::ValuesIn(named_gradients()),
                       ::testing::ValuesIn(variants())),
    case_name);
INSTANTIATE_TEST_SUITE_P(
    More, LeanHostsPlainLoops,
    ::testing::Combine(
        ::testing::ValuesIn(all_ranks()),
        ::testing::Values(named_gradients()[1], named_gradients()[3]),
        ::testing::Values(variants()[0], variants()[1], variants()[2])),
    case_name);

TEST_P(LeanHostsPlainLoops, AreEqual) {
  const auto& [ranks, gradients, variant] = GetParam();
  test::expect_plain_loops(ranks, gradients, variant);
}

// ---- steps

std::vector<float> grads(const LeanRun& run, std::int64_t t, int rank) {
  return test::late_gradient(run.layout, t, rank);
}

Options options() {
  Options o{.learning_rate = 0.02,
            .weight_decay = 0.1,
            .freeze = {.step = test::kLateFreeze}};
  o.compression.exchange.max_grad_norm = 1;
  o.compression.exchange.bucket_elements = 2048;
  return o;
}

class LeanHosts : public ::testing::TestWithParam<LeanRanks> {};
INSTANTIATE_TEST_SUITE_P(All, LeanHosts, ::testing::ValuesIn(all_ranks()),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Flat, LeanHosts, ::testing::Values(LeanRanks{3}),
                         ranks_name);

TEST_P(LeanHosts, AGradientThatIsNotFiniteOnOneRankChangesNothing) {
  for (const DType dtype : {DType::kFloat32, kB16})
    run_lean_ranks(GetParam(), [&](comm::Communicator& comm) {
      LeanRun run(comm, test::late_layout(), dtype, options());
      LeanRun without(comm, test::late_layout(), dtype, options());
      for (std::int64_t t = 1; t <= 6; ++t) {
        const auto own = grads(run, t, comm.rank());
        auto bad = own;
        if (comm.rank() == comm.size() - 1)
          bad[static_cast<std::size_t>(t) * 731] =
              t % 2 == 0 ? std::numeric_limits<float>::infinity()
                         : std::numeric_limits<float>::quiet_NaN();
        const StateDict before = copy_of(run.optimizer->state());
        optim::EarlyGradients& early = *run.optimizer->early();
        if (t % 2 == 0 && early.reduces())
          early.reduce(bad, early.buckets()[0]);
        const auto report = run.optimizer->step(run.params.view(), bad);
        EXPECT_FALSE(report.applied);
        EXPECT_EQ(run.optimizer->progress().skipped, t);
        const auto per_host =
            static_cast<std::size_t>(comm.hosts().ranks_per_host);
        const auto& ranks = comm.hosts().ranks;
        const int last = comm.size() - 1;
        EXPECT_EQ(report.nonfinite_rank,
                  t <= test::kLateFreeze || comm.hosts().is_flat()
                      ? last
                      : ranks[ranks.size() - per_host]);
        const StateDict after = copy_of(run.optimizer->state());
        for (const optim::StateArray& array : run.optimizer->state().arrays)
          EXPECT_TRUE(test::same_bytes(before.array(array.name),
                                       after.array(array.name)))
              << array.name;
        run.step(own);
        without.step(own);
        EXPECT_TRUE(test::same_bits<float>(run.full(), without.full())) << t;
      }
    });
}

TEST_P(LeanHosts, EarlyReductionChangesNoBits) {
  for (const DType gradients : {DType::kFloat32, kB16})
    run_lean_ranks(GetParam(), [&](comm::Communicator& comm) {
      LeanRun run(comm, test::late_layout(), kB16, options());
      LeanRun early(comm, test::late_layout(), kB16, options());
      for (std::int64_t t = 1; t <= 6; ++t) {
        const auto own = grads(run, t, comm.rank());
        Buffer whole = test::rounded(own, gradients);
        Buffer begun = test::rounded(own, gradients);
        run.optimizer->step(run.params.view(), whole.view());
        const auto buckets = early.optimizer->early()->buckets();
        ASSERT_GT(buckets.size(), 2u);
        const bool reduces = early.optimizer->early()->reduces();
        EXPECT_EQ(reduces, t <= test::kLateFreeze || !comm.hosts().is_flat());
        EXPECT_EQ(early.optimizer->early()->measures(), !reduces);
        for (std::size_t b = buckets.size(); b-- > 1;)
          if (reduces)
            early.optimizer->early()->reduce(begun.view(), buckets[b]);
          else
            early.optimizer->early()->measure(begun.view(), buckets[b]);
        early.optimizer->early()->finish();
        early.optimizer->step(early.params.view(), begun.view());
        EXPECT_TRUE(test::same_bits<float>(early.full(), run.full())) << t;
        if (early.optimizer->early()->measures()) continue;
        test::expect_error(ErrorCode::kFailedPrecondition, {"measure:"}, [&] {
          early.optimizer->early()->measure(ConstView(own), buckets[0]);
        });
      }
    });
}

// Means of equal values are those values, on 2^k ranks.
TEST(LeanHostsFreeze, IsAutomaticAndGatedAsOnOneRank) {
  const auto frozen_at = [](const LeanRanks& ranks, bool is_gated) {
    Options o{.freeze = {.step = optim::kAutoFreeze,
                         .min_step = 5,
                         .max_step = 150,
                         .ratio = 0.5}};
    if (ranks.world > 1) o.compression.exchange.bucket_elements = 1024;
    std::atomic<std::int64_t> found = 0;
    run_lean_ranks(ranks, [&](comm::Communicator& comm) {
      LeanRun run(comm, test::small_layout(), DType::kFloat32, o);
      std::int64_t first = 0;
      if (is_gated)
        run.optimizer->freeze()->set_gate(
            [&](const optim::FreezeRequest& asked) {
              EXPECT_GE(asked.time_exchange(), 0);
              if (first == 0) first = asked.step;
              return asked.step > first;
            });
      for (std::int64_t t = 1;
           t <= 160 && run.optimizer->freeze()->frozen_at() == 0; ++t)
        run.step(test::gradient(run.layout.size(), t, 0));  // on all ranks
      if (comm.rank() == 0) found = run.optimizer->freeze()->frozen_at();
    });
    return found.load();
  };
  const std::int64_t alone = frozen_at({.world = 1}, false);
  EXPECT_GT(alone, 5);
  for (const LeanRanks& ranks :
       {LeanRanks{2}, LeanRanks{4}, LeanRanks{4, 2}, LeanRanks{8, 4}}) {
    EXPECT_EQ(frozen_at(ranks, false), alone);
    EXPECT_GT(frozen_at(ranks, true), alone);
  }
}

// ---- traffic and memory; a rank of a flat group is a host

// 256 cells: a bucket of codes is more than the gathers that go straight.
ParameterLayout whole_cells() {
  return ParameterLayout::of(
      {{"first", {1024}, 0}, {"second", {253, 1024}, 0}, {"last", {2048}, 0}});
}

TEST(LeanHostsCost, EachHostsCardIsCrossedOnce) {
  constexpr double kCells = 256;
  for (const LeanRanks& ranks :
       {LeanRanks{4}, LeanRanks{4, 2}, LeanRanks{8, 4}}) {
    std::array<std::atomic<std::uint64_t>, 5> sent{};
    run_lean_ranks(ranks, [&](comm::Communicator& comm) {
      Options o{.freeze = {.step = 2}};
      o.compression.exchange.bucket_elements = 1 << 17;
      LeanRun run(comm, whole_cells(), kB16, o);
      for (std::size_t t = 1; t < sent.size(); ++t) {
        const auto step = static_cast<std::int64_t>(t);
        sent[t] +=
            run.step(test::gradient(run.layout.size(), step, comm.rank()))
                .bytes_between_hosts;
      }
    });
    const double w = ranks.world;
    const double others = w - ranks.per_host;  // ranks on other hosts
    const double hosts = ranks.workers() - 1.0;
    const auto expect_near = [&](double got, double want, const char* what) {
      EXPECT_NEAR(got, want, 0.01 * want) << ranks.name() << ' ' << what;
    };
    const double compressed = w * others * 16 + 2 * hosts * kCells * 132;
    expect_near(static_cast<double>(sent[3]), compressed, "compressed");
    expect_near(static_cast<double>(sent[4]), compressed, "compressed");
    // Masters, codes and records once; straight what goes with cells, and how
    // many exceptions a rank has.
    const double freeze = hosts * kCells * (1024 * (4 + 1) + 132) +
                          others * (kCells * 16 + w * 8);
    expect_near(static_cast<double>(sent[2] - sent[1]), freeze, "freeze");
  }
}

// Residuals and means are shared by a host.
TEST(LeanHostsCost, MemoryIsAsDocumented) {
  const auto layout = ParameterLayout::of({{"all", {512, 1024}, 0}});
  const auto n = static_cast<double>(layout.size());
  const auto in_use = [] { return static_cast<double>(memory_use().total()); };
  for (const LeanRanks& ranks : {LeanRanks{2}, LeanRanks{4, 2}})
    for (const int bits : {8, 4})
      for (const DType gradients : {DType::kFloat32, kB16})
        run_lean_ranks(ranks, [&](comm::Communicator& comm) {
          Options o{.freeze = {.step = 2}, .denominator_bits = bits};
          o.compression.exchange.bucket_elements = 8192;
          o.compression.exchange.num_threads = 1;
          const double before = in_use();
          LeanRun run(comm, layout, kB16, o);
          for (std::int64_t t = 1; t <= 4; ++t) {
            // bf16 parameters, masters and two moments of a shard; some buckets
            if (t == 2) {
              EXPECT_NEAR((in_use() - before) / n, 2 + 12.0 / ranks.world, 0.2);
            }
            const std::vector<float> values(layout.size(),
                                            1.0f / static_cast<float>(t));
            Buffer own =
                test::rounded(values, t <= 2 ? DType::kFloat32 : gradients);
            run.optimizer->step(run.params.view(), own.view());
          }
          const double g = ranks.per_host;
          const double means = g > 1 && gradients == kB16 ? 4 / g : 0;
          const double want =
              4 + 0.13 + 0.01 + bits / 8.0 + 2 / g + 2.0 / ranks.world + means;
          EXPECT_NEAR((in_use() - before) / n / want, 1, 0.01)
              << ranks.name() << ' ' << to_string(gradients);
        });
}

// ---- states

// Their ranks have other pieces; checkpoints take them there.
TEST(LeanHostsState, AStateInMemoryIsRefusedOnOtherHosts) {
  test::run_ranks("local", 4, [&](comm::Communicator& flat) {
    const auto by_host =
        flat.by_host(test::hosts_of(4, 2, Placing::kBlocks, flat.rank()));
    const auto otherwise =
        flat.by_host(test::hosts_of(4, 2, Placing::kRoundRobin, flat.rank()));
    LeanRun run(*by_host, test::late_layout(), kB16, options());
    for (std::int64_t t = 1; t <= 4; ++t) {
      run.step(grads(run, t, flat.rank()));
      if (t == test::kLateFreeze) continue;
      const bool is_frozen = t > test::kLateFreeze;
      const StateDict state = copy_of(run.optimizer->state());
      for (comm::Communicator* const comm : {&flat, otherwise.get()}) {
        LeanRun other(*comm, test::late_layout(), kB16, options());
        const std::string_view text =
            !is_frozen      ? "shards"
            : comm == &flat ? "residuals of 2 ranks per host do not fit 1"
                            : "of other hosts";
        test::expect_error(ErrorCode::kCorruptCheckpoint, {text},
                           [&] { other.optimizer->load_state_dict(state); });
        EXPECT_EQ(other.optimizer->progress().steps, 0);
      }
    }
  });
}

}  // namespace
}  // namespace thinwire::lean::lean_hosts_test
