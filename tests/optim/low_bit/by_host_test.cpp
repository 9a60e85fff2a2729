// SPDX-License-Identifier: Apache-2.0
// Low-bit optimizers by host, against plain loops in which every host is one
// worker that has the mean of its ranks' gradients.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "optim/low_bit/cases.h"
#include "optim/naive/lamb.h"
#include "optim/naive/onebit_adam.h"
#include "optim/naive/zero_one_adam.h"
#include "support/same_bits.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {
namespace {

using test::naive::Floats;

struct Ranks {
  int hosts;
  int per_host;
  [[nodiscard]] int size() const { return hosts * per_host; }
};

// Calls body(optimizer's communicator by host) on every rank.
void run_by_host(Ranks ranks,
                 const std::function<void(comm::Communicator&)>& body) {
  comm::run_local_ranks(ranks.size(), [&](comm::Communicator& flat) {
    const auto comm = flat.by_host(
        comm::find_hosts(flat, {.ranks_per_host = ranks.per_host}));
    body(*comm);
  });
}

struct Given {
  ParameterLayout layout = test::grouped_layout();
  std::int64_t steps = 9;
  /// Of gradients once `exact_steps` steps have been taken.
  DType dtype = DType::kFloat32;
  std::int64_t exact_steps = 3;
};

// Rank r's; from step 6 on the parameter without a gradient has one, on one
// rank.
Floats gradient_of(const Given& given, std::int64_t t, int rank) {
  Floats g = test::gradient_with_gaps(given.layout, t, rank);
  const Parameter& dead = given.layout.parameter("dead");
  if (t >= 6 && rank == 1) g[dead.offset + 2] = 0.25f;
  if (given.dtype == DType::kFloat32 || t <= given.exact_steps) return g;
  Buffer rounded(g.size(), given.dtype);
  kernels::convert(g, rounded.view());
  kernels::convert(std::as_const(rounded).view(), g);
  return g;
}

// Ranks' gradients, averaged beforehand for every host.
std::vector<std::vector<Floats>> means(const Given& given, Ranks ranks) {
  std::vector<std::vector<Floats>> all;
  for (std::int64_t t = 1; t <= given.steps; ++t) {
    all.emplace_back();
    for (int h = 0; h < ranks.hosts; ++h) {
      Floats mean = gradient_of(given, t, h * ranks.per_host);
      for (int l = 1; l < ranks.per_host; ++l) {
        const Floats g = gradient_of(given, t, h * ranks.per_host + l);
        for (std::size_t i = 0; i < g.size(); ++i) mean[i] = mean[i] + g[i];
      }
      for (float& g : mean) g = g * (1.0f / static_cast<float>(ranks.per_host));
      all.back().push_back(std::move(mean));
    }
  }
  return all;
}

template <class Naive>
void expect_same_run(Ranks ranks, const Given& given, Naive naive,
                     const test::MakeOptimizer& make) {
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<std::vector<Floats>> got(static_cast<std::size_t>(given.steps),
                                       std::vector<Floats>(size));
  run_by_host(ranks, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, given.layout);
    Floats params = test::normal(given.layout.size(), 3);
    for (std::int64_t t = 1; t <= given.steps; ++t) {
      const Floats g = gradient_of(given, t, comm.rank());
      const bool is_exact = t <= given.exact_steps;
      Buffer grads(g.size(), is_exact ? DType::kFloat32 : given.dtype);
      kernels::convert(g, grads.view());
      const StepReport report = optimizer->step(params, grads.view());
      EXPECT_TRUE(report.applied);
      got[static_cast<std::size_t>(t - 1)]
         [static_cast<std::size_t>(comm.rank())] = params;
    }
  });
  const auto of_hosts = means(given, ranks);
  for (std::size_t t = 0; t < of_hosts.size(); ++t) {
    ASSERT_TRUE(naive.step(of_hosts[t]));
    for (std::size_t r = 0; r < size; ++r)
      ASSERT_TRUE(test::same_bits(std::span<const float>(got[t][r]),
                                  std::span<const float>(naive.params(
                                      static_cast<int>(r) / ranks.per_host))))
          << fmt::format("rank {} of {} hosts of {}, step {}", r, ranks.hosts,
                         ranks.per_host, t + 1);
  }
}

class ByHost : public ::testing::TestWithParam<Ranks> {};
INSTANTIATE_TEST_SUITE_P(All, ByHost,
                         ::testing::Values(Ranks{2, 2}, Ranks{4, 2},
                                           Ranks{2, 4}, Ranks{4, 1}),
                         [](const auto& tested) {
                           return fmt::format("{}x{}", tested.param.hosts,
                                              tested.param.per_host);
                         });

template <class Options>
std::vector<Options> variants(const Options& plain) {
  Options masks = test::with_second_group(plain);
  masks.groups[0].exp_avg_mask =
      test::every_third_masked(test::grouped_layout(), 0);
  masks.exchange.bucket_elements = 400;
  masks.exchange.num_threads = 3;
  Options small = plain;
  small.exchange.bucket_elements = 1;
  small.residual_dtype = DType::kBFloat16;
  return {plain, masks, small};
}

TEST_P(ByHost, OnebitAdamHasTheBitsOfPlainLoops) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const auto& o :
         variants(OnebitAdamOptions{.learning_rate = 0.02, .freeze_step = 3})) {
      OnebitAdamOptions own = o;
      if (own.groups.empty()) own.groups.resize(2);
      const Given given{.dtype = dtype};
      expect_same_run(
          GetParam(), given,
          test::naive::OnebitAdam(GetParam().hosts, given.layout, own,
                                  test::normal(given.layout.size(), 3)),
          test::onebit_adam(own));
    }
}

TEST_P(ByHost, OnebitLambHasThemToo) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const auto& o :
         variants(OnebitLambOptions{.learning_rate = 0.02, .freeze_step = 3})) {
      OnebitLambOptions own = o;
      if (own.groups.empty()) own.groups.resize(2);
      const Given given{.dtype = dtype};
      // Flat, outliers of 16 bits are bounded in 16 bits; plain loops are not.
      if (GetParam().per_host == 1 && dtype != DType::kFloat32) continue;
      expect_same_run(
          GetParam(), given,
          test::naive::OnebitLamb(GetParam().hosts, given.layout, own,
                                  test::normal(given.layout.size(), 3)),
          test::onebit_lamb(own));
    }
}

// Variance steps 1, 2, 4, 6, 1-bit steps 3 and 5, then syncs and local steps.
TEST_P(ByHost, ZeroOneAdamTakesTheLocalStepsOfAHostTogether) {
  for (const Exchanged exchanged : {Exchanged::kMomentum, Exchanged::kGradient})
    for (const auto& o : variants(ZeroOneAdamOptions{.learning_rate = 0.01,
                         .var_freeze_step = 6,
                         .var_update_scaler = 2,
                         .local_step_scaler = 2,
                         .local_step_clipper = 4})) {
      ZeroOneAdamOptions own = o;
      own.exchanged = exchanged;
      if (own.groups.empty()) own.groups.resize(2);
      const Given given{.steps = 18};
      expect_same_run(
          GetParam(), given,
          test::naive::ZeroOneAdam(GetParam().hosts, given.layout, own,
                                   test::normal(given.layout.size(), 3)),
          test::zero_one_adam(own));
    }
}

// ---- clipping

// What one rank says of every step.
std::vector<StepReport> reports(Ranks ranks, const test::MakeOptimizer& make,
                                const ParameterLayout& layout,
                                std::int64_t steps) {
  std::vector<StepReport> of_first;
  run_by_host(ranks, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout);
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= steps; ++t) {
      auto grads = test::gradient(layout.size(), t, comm.rank());
      const StepReport report = optimizer->step(params, grads);
      if (comm.rank() == 0) of_first.push_back(report);
    }
  });
  return of_first;
}

TEST_P(ByHost, ClipsByTheNormsOfHostsMeans) {
  const ParameterLayout layout = ParameterLayout::of(
      {{"frozen", {7000}, 0}, {"exact", {333}, 1}, {"more", {1500}, 0}});
  OnebitAdamOptions options{.learning_rate = 0.02, .freeze_step = 1};
  options.groups.resize(2);
  options.groups[1].non_freeze = true;
  options.exchange.max_grad_norm = 0.5;
  options.exchange.calibrated_clipping = false;
  options.exchange.bucket_elements = 3000;
  const Ranks ranks = GetParam();
  const auto got = reports(ranks, test::onebit_adam(options), layout, 3);
  for (std::int64_t t = 2; t <= 3; ++t) {
    double squares = 0;
    for (int h = 0; h < ranks.hosts; ++h) {
      std::vector<double> mean(layout.size());
      for (int l = 0; l < ranks.per_host; ++l) {
        const Floats g =
            test::gradient(layout.size(), t, h * ranks.per_host + l);
        for (std::size_t i = 0; i < g.size(); ++i)
          mean[i] += double{g[i]} / ranks.per_host;
      }
      for (const double g : mean) squares += g * g;
    }
    const double rms = std::sqrt(squares / ranks.hosts);
    const StepReport& report = got[static_cast<std::size_t>(t - 1)];
    EXPECT_NEAR(report.grad_norm, rms, 1e-6 * rms);
    EXPECT_NEAR(report.clip_factor, 0.5 / rms, 1e-6);
  }
}

// rho is calibrated in exact steps by what compressed ones use: the estimate is
// the norm that an exact step would have found.
TEST_P(ByHost, TheCalibratedNormIsThatOfTheMean) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {60'000}}});
  const auto compressed =
      reports(GetParam(), test::onebit_adam({.freeze_step = 10}), layout, 16);
  const auto exact =
      reports(GetParam(), test::onebit_adam({.freeze_step = 16}), layout, 16);
  for (std::size_t t = 10; t < 16; ++t) {
    EXPECT_TRUE(compressed[t].grad_norm_is_estimate);
    EXPECT_NEAR(compressed[t].grad_norm, exact[t].grad_norm,
                0.03 * exact[t].grad_norm);
  }
}

// ---- gradients that are not finite

bool same_memory(ConstView a, ConstView b) {
  return a.bytes() == b.bytes() &&
         (a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}

TEST_P(ByHost, AnOverflowOnOneRankChangesNothingAnywhere) {
  const Ranks ranks = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  for (const auto& tested : test::low_bit_cases())
    run_by_host(ranks, [&](comm::Communicator& comm) {
      const auto optimizer = tested.make(comm, layout);
      Floats params = test::normal(layout.size(), 3);
      for (std::int64_t t = 1; t <= tested.steps; ++t) {
        const StateDict before = optimizer->state_dict();
        const Floats params_before = params;
        const bool is_local = optimizer->phase() == Phase::kLocal;
        auto bad = test::gradient(layout.size(), t, comm.rank());
        if (comm.rank() == ranks.size() - 1)
          bad[static_cast<std::size_t>(t) * 37 % layout.size()] =
              std::numeric_limits<float>::infinity();
        const StepReport report =
            optimizer->step(StepInput{.params = params,
                                      .grads = bad,
                                      .skip_if_any_rank_nonfinite = true});
        EXPECT_FALSE(report.applied);
        if (report.phase == Phase::kCompressed || is_local) {
          EXPECT_EQ(report.nonfinite_rank, ranks.size() - ranks.per_host);
        }
        EXPECT_EQ(params, params_before);
        const StateDict after = optimizer->state_dict();
        for (const char* array : {"worker_error", "server_error", "exp_avg"})
          if (before.has_array(array)) {
            EXPECT_TRUE(same_memory(before.array(array), after.array(array)))
                << array;
          }
        auto good = test::gradient(layout.size(), t, comm.rank());
        (void)optimizer->step(params, good);
      }
    });
}

// ---- what is sent, and early

TEST_P(ByHost, BitsDoNotDependOnWhatIsReducedEarly) {
  const ParameterLayout layout = test::grouped_layout();
  OnebitAdamOptions options{.learning_rate = 0.02, .freeze_step = 2};
  options.groups.resize(2);
  options.exchange.bucket_elements = 300;
  options.exchange.max_grad_norm = 1;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    run_by_host(GetParam(), [&](comm::Communicator& comm) {
      OnebitAdam plain(comm, layout, options);
      OnebitAdam early(comm, layout, options);
      Floats want = test::normal(layout.size(), 3);
      Floats got = want;
      for (std::int64_t t = 1; t <= 6; ++t) {
        const auto g = test::gradient(layout.size(), t, comm.rank());
        Buffer own(g.size(), dtype);
        Buffer begun(g.size(), dtype);
        kernels::convert(g, own.view());
        kernels::convert(g, begun.view());
        plain.step(want, own.view());
        EXPECT_EQ(early.reduces_early(), t <= 2 || !comm.hosts().is_flat());
        if (early.reduces_early()) {
          early.reduce_early(begun.view(), {1024, layout.size() - 1024});
          if (t % 2 == 0) early.reduce_early(begun.view(), {0, 1024});
          early.finish_early();
        }
        early.step(got, begun.view());
        ASSERT_EQ(got, want) << t;
      }
    });
}

TEST_P(ByHost, SendsBetweenHostsWhatTheFormulaSays) {
  constexpr std::size_t kBlocks = 48;  // in balance
  const Ranks ranks = GetParam();
  if (ranks.per_host == 1) return;
  const ParameterLayout layout =
      ParameterLayout::of({{"p", {kBlocks / 2, 1024}}, {"q", {24 * 1024}}});
  const auto h = static_cast<double>(ranks.hosts);
  const double records = kBlocks * 132.0;
  for (const StepReport& report :
       reports(ranks, test::onebit_adam({.freeze_step = 2}), layout, 5)) {
    const bool exact = report.phase == Phase::kExact;
    const double whole = exact ? kBlocks * 4096.0 : records;
    // All ranks' scalars, and 1/G of what hosts exchange.
    const double want = 16.0 * (ranks.size() - ranks.per_host) +
                        2 * (h - 1) / h * whole / ranks.per_host;
    EXPECT_NEAR(static_cast<double>(report.bytes_between_hosts), want,
                0.01 * want)
        << to_string(report.phase);
  }
}

}  // namespace
}  // namespace thinwire::optim
