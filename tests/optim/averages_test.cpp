// SPDX-License-Identifier: Apache-2.0
// AverageOptions: exact optimizers whose gradients are averaged in 4 or 8 bits
// or as low-rank products, against plain loops.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "exchange/naive_low_rank.h"
#include "exchange/naive_mean.h"
#include "optim/naive/drive.h"
#include "optim/other_ranks.h"
#include "optim/states.h"
#include "support/converted.h"
#include "support/errors.h"

namespace thinwire::optim::averages_test {
namespace {

using Floats = std::vector<float>;
using All = std::vector<Floats>;  // of all ranks

constexpr std::int64_t kSteps = 7;
const ExchangeOptions kExchange{.max_grad_norm = 1, .bucket_elements = 900};

test::MakeOptimizer adam_in(int bits) {
  return test::exact_adam({.learning_rate = 0.02}, kExchange, {.bits = bits});
}

// ---- a run

// Rank 1 has a gradient that is not finite in two steps.
bool is_skipped(std::int64_t t) { return t == 2 || t == 5; }
double scale_of(DType dtype, std::int64_t t) {
  return dtype == DType::kFloat16 ? (t < 4 ? 16 : 8) : 1;
}
Floats gradient_of(const ParameterLayout& layout, DType dtype, std::int64_t t,
                   int rank) {
  Floats values = test::gradient_with_gaps(layout, t, rank);
  for (float& g : values) g *= static_cast<float>(scale_of(dtype, t));
  if (rank == 1 && is_skipped(t))
    values[static_cast<std::size_t>(t) * 300] =
        std::numeric_limits<float>::infinity();
  const Buffer rounded = test::converted(values, dtype);
  return test::floats_of(rounded.view());
}

struct After {
  Floats params;
  double norm = 0;

  bool operator==(const After&) const = default;
};
using Steps = std::vector<After>;  // step by step

// ---- by plain loops

// Returns what hosts, which are workers, have: the means of their ranks.
All means_of_hosts(test::Ranks ranks, const All& grads) {
  const std::size_t size = grads.front().size();
  All x(static_cast<std::size_t>(ranks.hosts), Floats(size));
  const auto per_host = static_cast<std::size_t>(ranks.per_host);
  for (std::size_t r = 0; r < grads.size(); ++r)
    for (std::size_t i = 0; i < size; ++i) x[r / per_host][i] += grads[r][i];
  for (Floats& host : x)
    for (float& value : host) value *= 1.0f / static_cast<float>(per_host);
  return x;
}

// Averages in place what each worker has.
using NaiveAverage = std::function<void(All& x, float scale)>;

NaiveAverage naive_in(int bits, const ParameterLayout& layout, int workers) {
  return [=, e = All(static_cast<std::size_t>(workers), Floats(layout.size())),
          d = Floats(layout.size())](All& x, float scale) mutable {
    for (const Parameter& p : layout.parameters())
      test::naive_mean({p.offset, p.size}, bits, scale, x, e, d);
  };
}

constexpr int kRank = 3;
constexpr std::int64_t kFirst = 2;

NaiveAverage naive_products(const ParameterLayout& layout, int workers) {
  std::vector<exchange::MatrixShape> shapes;
  for (const Parameter& p : layout.parameters()) {
    const bool is_matrix = p.shape.size() > 1 && p.size > 0;
    const std::size_t rows = is_matrix ? p.shape[0] : p.size;
    shapes.push_back({rows, is_matrix ? p.size / rows : 1});
  }
  const auto number = static_cast<std::size_t>(workers);
  const auto served_by = [=](std::size_t unit, std::size_t i) {
    std::size_t cut = i / 1024;
    for (std::size_t before = 0; before < unit; ++before)
      cut += (layout.parameters()[before].size + 1023) / 1024;
    return cut % number;
  };
  const auto naive = std::make_shared<test::NaiveLowRank>(
      shapes,
      exchange::LowRankMeanOptions{.low_rank = kRank, .first_steps = kFirst},
      number);
  return [=](All& x, float scale) { naive->average(x, scale, served_by); };
}

Steps naive_run(test::Ranks ranks, const ParameterLayout& layout,
                NaiveAverage average, DType dtype,
                const test::MakeOptimizer& make_exact) {
  Steps run;
  comm::run_local_ranks(1, [&](comm::Communicator& alone) {
    const auto exact = make_exact(alone, layout);
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      const double scale = scale_of(dtype, t);
      double norm = 0;
      if (!is_skipped(t)) {
        All grads;
        for (int r = 0; r < ranks.size(); ++r)
          grads.push_back(gradient_of(layout, dtype, t, r));
        All x = means_of_hosts(ranks, grads);
        average(x, static_cast<float>(scale));
        norm = exact
                   ->step({.params = params,
                           .grads = View(x.front()),
                           .loss_scale = scale})
                   .grad_norm;
      }
      run.push_back({params, norm});
    }
  });
  return run;
}

// ---- by the optimizer

using HandOver = std::function<void(EarlyGradients&, View grads)>;

void reduce_pieces(EarlyGradients& early, View grads, std::size_t piece,
                   std::size_t left_out) {
  const std::size_t pieces = (grads.size() + piece - 1) / piece;
  for (std::size_t k = pieces; k-- > 0;)
    if (k % 3 != left_out)
      early.reduce(grads,
                   {k * piece, std::min(piece, grads.size() - k * piece)});
}

const std::vector<HandOver>& hand_overs() {
  static const std::vector<HandOver> all = {
      [](auto&, View) {},
      [](auto& early, View g) { reduce_pieces(early, g, 500, 3); },
      [](auto& early, View g) { reduce_pieces(early, g, 100, 1); },
      [](auto& early, View g) {
        early.reduce(g, {0, g.size()});
      }};
  return all;
}

// Returns the bits that a step reports, and the rank of products.
using Reported = std::pair<int, int>;

Steps run_of(test::Ranks ranks, const ParameterLayout& layout, DType dtype,
             const test::MakeOptimizer& make, const HandOver& hand_over,
             const std::function<Reported(std::int64_t)>& reported) {
  Steps run;
  test::run_by_host(ranks, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout);
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      Buffer grads =
          test::converted(gradient_of(layout, dtype, t, comm.rank()), dtype);
      hand_over(*optimizer->early(), grads.view());
      const StepReport report =
          optimizer->step({.params = params,
                           .grads = grads.view(),
                           .loss_scale = scale_of(dtype, t)});
      EXPECT_EQ(report.applied, !is_skipped(t)) << t;
      EXPECT_EQ(Reported(report.bits, report.low_rank), reported(t)) << t;
      if (comm.rank() == 0)
        run.push_back({params, is_skipped(t) ? 0 : report.grad_norm});
    }
  });
  return run;
}

void expect_naive(test::Ranks ranks, const ParameterLayout& layout,
                  const AverageOptions& options,
                  const std::function<NaiveAverage()>& naive,
                  const std::function<Reported(std::int64_t)>& reported) {
  for (const bool is_lamb : {false, true})
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      const auto make = [&](const AverageOptions& average) {
        return is_lamb ? test::exact_lamb({.learning_rate = 0.02}, kExchange,
                                          average)
                       : test::exact_adam({.learning_rate = 0.02}, kExchange,
                                          average);
      };
      const Steps want = naive_run(ranks, layout, naive(), dtype, make({}));
      for (std::size_t h = 0; h < hand_overs().size(); ++h) {
        SCOPED_TRACE(fmt::format("{}, lamb {}, hand-over {}", to_string(dtype),
                                 is_lamb, h));
        const Steps got = run_of(ranks, layout, dtype, make(options),
                                 hand_overs()[h], reported);
        for (std::size_t t = 0; t < want.size(); ++t)
          ASSERT_EQ(got[t], want[t]) << t + 1;
      }
    }
}

// (ranks, bits)
using Case = std::tuple<test::Ranks, int>;

class InFewBits : public ::testing::TestWithParam<Case> {
 protected:
  const test::Ranks ranks = std::get<0>(GetParam());
  const int bits = std::get<1>(GetParam());
  const ParameterLayout layout = test::awkward_layout();
};
INSTANTIATE_TEST_SUITE_P(
    All, InFewBits,
    ::testing::Combine(::testing::Values(test::Ranks{2, 1}, test::Ranks{3, 1},
                                         test::Ranks{2, 2}),
                       ::testing::Values(4, 8)),
    [](const auto& tested) {
      const test::Ranks of = std::get<0>(tested.param);
      return fmt::format("{}x{}_{}_bits", of.hosts, of.per_host,
                         std::get<1>(tested.param));
    });

TEST_P(InFewBits, ARunEqualsPlainLoopsForAnyOrderOfGradients) {
  expect_naive(
      ranks, layout, {.bits = bits},
      [&] { return naive_in(bits, layout, ranks.hosts); },
      [&](std::int64_t) { return Reported(bits, 0); });
}

// Matrices with factors, some whose gradient is 0, and what has none.
ParameterLayout matrices() {
  return ParameterLayout::of({{"w", {33, 47}},
                              {"bias", {7}},
                              {"none", {4, 0}},
                              {"tall", {64, 31}},
                              {"dead", {40, 30}},
                              {"conv", {9, 30, 10}},
                              {"block_and_one", {1025}},
                              {"small", {5, 6}}});
}
const AverageOptions kProducts{.low_rank = kRank, .first_steps = kFirst};

class AsProducts : public ::testing::TestWithParam<test::Ranks> {};
INSTANTIATE_TEST_SUITE_P(All, AsProducts,
                         ::testing::Values(test::Ranks{2, 1}, test::Ranks{3, 1},
                                           test::Ranks{2, 2}),
                         test::name_of_ranks);

// Of the first steps that count one is skipped between.
TEST_P(AsProducts, ARunEqualsPlainLoopsForAnyOrderOfGradients) {
  const ParameterLayout layout = matrices();
  expect_naive(
      GetParam(), layout, kProducts,
      [&] { return naive_products(layout, GetParam().hosts); },
      [](std::int64_t t) {
        return t <= 3 ? Reported(4, 0) : Reported(0, kRank);
      });
}

TEST(AverageInFewBits, ASingleRankAveragesNothing) {
  const ParameterLayout layout = test::awkward_layout();
  const auto run = [&](int bits) {
    return test::train(1, layout, adam_in(bits), 3);
  };
  EXPECT_EQ(run(8), run(0));
}

TEST(AverageInFewBits, SendsAnEighthOfExactBytesInFourBits) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {4096}}});
  comm::run_local_ranks(4, [&](comm::Communicator& comm) {
    const auto optimizer = adam_in(4)(comm, layout);
    Floats params(4096);
    // 2 (W-1)/W times four blocks of a scale and 512 bytes.
    EXPECT_EQ(test::step_of(*optimizer, params, 1, comm.rank()).bytes_sent,
              2u * 3 * (512 + 4));
  });
}

TEST(AverageInFewBits, AStepWithOtherGradientsThanBackwardPassedIsRefused) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const ParameterLayout layout = test::awkward_layout();
    const auto optimizer = adam_in(8)(comm, layout);
    Floats params = test::normal(layout.size(), 3);
    (void)test::step_of(*optimizer, params, 1, comm.rank());
    Floats grads = test::gradient(layout.size(), 2, comm.rank());
    Floats others = grads;
    optimizer->early()->reduce(View(grads), {0, layout.size()});
    test::expect_invalid({"range", "apart from ranges in flight"}, [&] {
      optimizer->early()->reduce(View(grads), {5, 9});
    });
    test::expect_error(ErrorCode::kFailedPrecondition,
                       {"state", "between reduce() and step()"},
                       [&] { (void)optimizer->state(); });
    const Floats before = params;
    test::expect_invalid({"StepInput.grads", "reduce()"},
                         [&] { optimizer->step(params, others); });
    // They have been replaced by an average under another scale.
    test::expect_invalid({"loss_scale must be 1", "got 4"}, [&] {
      (void)optimizer->step(
          {.params = params, .grads = View(grads), .loss_scale = 4});
    });
    EXPECT_EQ(params, before);
    EXPECT_TRUE(optimizer->step(params, others).applied);
  });
}

TEST(AverageInFewBits, OptionsOutOfRangeOrDifferentBetweenRanksAreRefused) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto make = [&](const AverageOptions& average) {
      return test::exact_adam({}, {}, average)(comm, test::small_layout());
    };
    test::expect_invalid({"bits must be 0, 4 or 8, got 3"},
                         [&] { make({.bits = 3}); });
    test::expect_invalid({"low_rank must be in [0, 64], got 65"},
                         [&] { make({.low_rank = 65}); });
    test::expect_invalid({"bits must be 0 with low_rank = 8, got 4"},
                         [&] { make({.bits = 4, .low_rank = 8}); });
    test::expect_invalid({"first_steps must be >= 0, got -1"},
                         [&] { make({.low_rank = 8, .first_steps = -1}); });
    test::expect_invalid({"first_bits must be 4 or 8, got 0"},
                         [&] { make({.low_rank = 8, .first_bits = 0}); });
    test::expect_invalid({"first_steps must be left out without low_rank"},
                         [&] { make({.bits = 4, .first_steps = 3}); });
    test::expect_invalid({"first_bits must be left out without low_rank"},
                         [&] { make({.first_bits = 8}); });
    test::expect_invalid({"total_steps must be >= 1, got 0"},
                         [&] { make({.low_rank = 8, .total_steps = 0}); });
    test::expect_invalid({"options", "bits=4", "bits=8"},
                         [&] { make({.bits = comm.rank() == 0 ? 4 : 8}); });
  });
}

TEST(FirstSteps, FollowFromTheRunsLength) {
  EXPECT_EQ(first_steps_of({.low_rank = 8}), 20);
  EXPECT_EQ(first_steps_of({.low_rank = 8, .total_steps = 400}), 20);
  EXPECT_EQ(first_steps_of({.low_rank = 8, .total_steps = 5000}), 250);
  EXPECT_EQ(
      first_steps_of({.low_rank = 8, .first_steps = 3, .total_steps = 5000}),
      3);
}

// ---- states

struct Training {
  ParameterLayout layout;
  std::unique_ptr<Optimizer> optimizer;
  Floats params;

  void step(std::int64_t t, int rank, const HandOver& hand_over) {
    Floats grads = test::gradient_with_gaps(layout, t, rank);
    hand_over(*optimizer->early(), View(grads));
    (void)optimizer->step(params, grads);
  }
};

Training begun(comm::Communicator& comm, const test::MakeOptimizer& make,
               const ParameterLayout& layout = test::awkward_layout()) {
  return {layout, make(comm, layout), test::normal(layout.size(), 3)};
}

// Three steps of all ranks, and what each then saves.
struct SavedRun {
  std::vector<test::Saved> states;
  All params;
};
SavedRun saved_run(test::Ranks ranks, const test::MakeOptimizer& make,
                   const ParameterLayout& layout = test::awkward_layout()) {
  const auto size = static_cast<std::size_t>(ranks.size());
  SavedRun saved{std::vector<test::Saved>(size), All(size)};
  test::run_by_host(ranks, [&](comm::Communicator& comm) {
    Training run = begun(comm, make, layout);
    for (std::int64_t t = 1; t <= 3; ++t)
      run.step(t, comm.rank(), hand_overs()[3]);
    const auto rank = static_cast<std::size_t>(comm.rank());
    saved.states[rank] = test::save(*run.optimizer);
    saved.params[rank] = run.params;
  });
  return saved;
}

void expect_resumes(test::Ranks ranks, const test::MakeOptimizer& make,
                    const ParameterLayout& layout = test::awkward_layout()) {
  const SavedRun saved = saved_run(ranks, make, layout);
  test::run_by_host(ranks, [&](comm::Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    Training whole = begun(comm, make, layout);
    for (std::int64_t t = 1; t <= 6; ++t)
      whole.step(t, comm.rank(), hand_overs()[0]);
    for (const bool in_memory : {false, true}) {
      Training resumed = begun(comm, make, layout);
      if (in_memory) {
        resumed.optimizer->load_state_dict(saved.states[rank].values);
      } else {
        test::adopt(comm, *resumed.optimizer, saved.states);
      }
      resumed.params = saved.params[rank];
      for (std::int64_t t = 4; t <= 6; ++t)
        resumed.step(t, comm.rank(), hand_overs()[2]);
      EXPECT_EQ(resumed.params, whole.params) << in_memory;
      EXPECT_TRUE(test::same_state(copy_of(resumed.optimizer->state()),
                                   copy_of(whole.optimizer->state())));
    }
  });
}

TEST_P(InFewBits, ARunResumesWithTheSameBits) {
  expect_resumes(ranks, adam_in(bits));
}

// Before the last first step, right after it, and with products.
TEST_P(AsProducts, ARunResumesWithTheSameBits) {
  for (const std::int64_t first : {5, 3, 1})
    expect_resumes(GetParam(),
                   test::exact_adam({.learning_rate = 0.02}, kExchange,
                                    {.low_rank = kRank, .first_steps = first}),
                   matrices());
}

TEST(AverageAsProducts, ContinuesFromOtherAveragesAndNotesDroppedFactors) {
  const auto products = [](int rank) {
    return test::exact_adam({}, kExchange,
                            {.low_rank = rank, .first_steps = 2});
  };
  struct Load {
    test::MakeOptimizer from;
    test::MakeOptimizer to;
    std::size_t notes = 0;
    Reported then;
  };
  const std::vector<Load> loads = {
      {products(2), products(3), 1, {0, 3}},
      {adam_in(4), products(3), 0, {0, 3}},
      {test::exact_adam({}), products(3), 0, {0, 3}},
      {products(3), adam_in(8), 0, {8, 0}},
      {products(3), test::exact_adam({}), 1, {0, 0}}};
  for (const int world : {2, 3})
    for (const Load& load : loads) {
      const SavedRun saved = saved_run({2, 1}, load.from, matrices());
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        Training run = begun(comm, load.to, matrices());
        const test::OtherRanks states(saved.states, comm.rank(), comm.size());
        EXPECT_EQ(
            run.optimizer->adopt(states.state_for(run.optimizer->state()))()
                .size(),
            load.notes);
        const StepReport report =
            test::step_of(*run.optimizer, run.params, 4, comm.rank());
        EXPECT_TRUE(report.applied);
        EXPECT_EQ(Reported(report.bits, report.low_rank), load.then);
      });
    }
}

Floats array_of(const Optimizer& optimizer, const char* name) {
  return test::floats_of(copy_of(optimizer.state()).array(name));
}

constexpr const char* kWorker = "average.worker_error";
constexpr const char* kServer = "average.server_error";

TEST(AverageInFewBits, OnOtherRanksEachHasTheMeanOfWorkersResiduals) {
  const SavedRun saved = saved_run({4, 1}, adam_in(4));
  const std::size_t size = test::awkward_layout().size();
  Floats mean(size);
  Floats server(size);
  for (std::size_t i = 0; i < size; ++i) {
    double sum = 0;
    for (const test::Saved& one : saved.states)
      sum += double{one.values.array(kWorker).as<float>()[i]};
    mean[i] = static_cast<float>(sum / 4);
  }
  for (const test::Saved& one : saved.states) {
    const auto values = one.values.array(kServer).as<float>();
    std::size_t at = 0;
    for (const Range& range : one.what.find(kServer)->ranges)
      for (std::size_t i = range.offset; i < range.end(); ++i)
        server[i] = values[at++];
  }
  for (const int world : {2, 3})
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      Training run = begun(comm, adam_in(4));
      test::adopt(comm, *run.optimizer, saved.states);
      EXPECT_EQ(array_of(*run.optimizer, kWorker), mean);
      run.step(4, comm.rank(), hand_overs()[0]);
    });
  // A single rank adds all of it to its first gradient that counts.
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    comm::run_local_ranks(1, [&](comm::Communicator& comm) {
      Training run =
          begun(comm, test::exact_adam({.beta1 = 0, .bias_correction = false},
                                       {}, {.bits = 4}));
      test::adopt(comm, *run.optimizer, saved.states);
      EXPECT_EQ(array_of(*run.optimizer, kWorker), mean);
      Floats values = test::gradient(size, 4, 0);
      values[7] = NAN;
      Buffer grads = test::converted(values, dtype);
      EXPECT_FALSE(run.optimizer->step(run.params, grads.view()).applied);
      EXPECT_EQ(array_of(*run.optimizer, kServer), server);
      values[7] = 2;
      grads = test::converted(values, dtype);
      const Floats g = test::floats_of(std::as_const(grads).view());
      EXPECT_TRUE(run.optimizer
                      ->step({.params = run.params,
                              .grads = grads.view(),
                              .loss_scale = 2})
                      .applied);
      const Floats m = array_of(*run.optimizer, "exp_avg");
      for (std::size_t i = 0; i < size; ++i)
        ASSERT_EQ(m[i], (g[i] + (server[i] + mean[i]) * 2) * 0.5f) << i;
      EXPECT_FALSE(copy_of(run.optimizer->state()).has_array(kWorker));
    });
}

// Of other bits, of none, and of other optimizers.
TEST(AverageInFewBits, StatesOfOtherAveragesAreLoadedAndDroppedPartsNoted) {
  const auto exact = test::exact_adam({.learning_rate = 0.02});
  const auto onebit = test::onebit_adam(
      {.learning_rate = 0.02, .freeze = {.step = 9, .warmup_bits = 4}});
  const auto saved = [](const test::MakeOptimizer& make) {
    return std::make_shared<const std::vector<test::Saved>>(
        saved_run({2, 1}, make).states);
  };
  struct Load {
    std::shared_ptr<const std::vector<test::Saved>> from;
    test::MakeOptimizer to;
    std::string note;    // none: ""
    bool keeps = false;  // residuals
  };
  const std::vector<Load> loads = {
      {saved(exact), adam_in(4), ""},
      {saved(adam_in(4)), adam_in(8), "", true},
      {saved(adam_in(4)), exact, "residuals of low-bit"},
      {saved(adam_in(4)), onebit, "residuals of low-bit"},
      {saved(onebit), adam_in(4), "belong to ZeRO or to a 1-bit optimizer"}};
  for (std::size_t k = 0; k < loads.size(); ++k)
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      SCOPED_TRACE(k);
      const Load& load = loads[k];
      Training run = begun(comm, load.to);
      const test::OtherRanks states(*load.from, comm.rank(), comm.size());
      const Notes notes =
          run.optimizer->adopt(states.state_for(run.optimizer->state()))();
      ASSERT_EQ(notes.size(), load.note.empty() ? 0u : 1u);
      if (!notes.empty()) {
        EXPECT_NE(notes[0].find(load.note), std::string::npos) << notes[0];
      }
      EXPECT_EQ(run.optimizer->progress().steps, 3);
      const StateDict now = copy_of(run.optimizer->state());
      if (now.has_array(kWorker)) {
        const Floats e = test::floats_of(now.array(kWorker));
        EXPECT_EQ(std::ranges::any_of(e, [](float x) { return x != 0; }),
                  load.keeps);
      }
      run.step(4, comm.rank(), hand_overs()[0]);
    });
}

TEST(AverageInFewBits, AStateOfAnotherRankInMemoryIsRefused) {
  const SavedRun saved = saved_run({2, 1}, adam_in(8));
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Training run = begun(comm, adam_in(8));
    const auto other = static_cast<std::size_t>(1 - comm.rank());
    test::expect_error(
        ErrorCode::kCorruptCheckpoint, {"residuals of rank", "do not fit rank"},
        [&] { run.optimizer->load_state_dict(saved.states[other].values); });
    StateDict without = test::without(saved.states[other].values, "");
    for (const char* key : {kWorker, kServer, "world_size"})
      without = test::without(without, key);
    EXPECT_TRUE(run.optimizer->load_state_dict(without).empty());
  });
}

// ---- damaged states

struct Damage {
  std::function<void(StateDict&)> change;
  std::string named;
};

Damage missing(const std::string& key) {
  return {[key](StateDict& state) { state = test::without(state, key); }, key};
}
Damage number(const std::string& key, std::int64_t value) {
  return {[=](StateDict& state) { state.put_integer(key, value); }, key};
}
Damage text(const std::string& key) {
  return {[=](StateDict& state) {
            state = test::without(state, key);
            state.put_text(key, "4");
          },
          key};
}
template <class T>
Damage values(const std::string& key, std::size_t size) {
  return {[=](StateDict& state) { state.put(key, std::vector<T>(size)); }, key};
}

void expect_refused(const test::MakeOptimizer& make,
                    const std::vector<Damage>& damages) {
  const SavedRun saved = saved_run({2, 1}, make, matrices());
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    for (const Damage& damage : damages) {
      SCOPED_TRACE(damage.named);
      Training run = begun(comm, make, matrices());
      run.step(1, comm.rank(), hand_overs()[0]);
      const StateDict before = copy_of(run.optimizer->state());
      StateDict state = test::without(saved.states[rank].values, "");
      damage.change(state);
      test::expect_error(ErrorCode::kCorruptCheckpoint, {damage.named},
                         [&] { run.optimizer->load_state_dict(state); });
      EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()), before));
    }
  });
}

TEST(AverageInFewBits, ADamagedStateIsRefusedByName) {
  const std::size_t size = matrices().size();
  expect_refused(
      adam_in(4),
      {missing(kWorker), missing(kServer), missing("residual_layout"),
       missing("rank"), missing("world_size"), number("average_bits", -5),
       number("average_bits", 5), text("average_bits"), number("low_rank", -5),
       number("low_rank", 65), text("low_rank"),
       values<std::int64_t>(kWorker, size), values<float>(kWorker, size - 1),
       values<double>(kServer, 5)});
}

TEST(AverageAsProducts, ADamagedStateIsRefusedByName) {
  const std::string factors = "low_rank.factors";
  const std::string generators = "low_rank.generators";
  for (const bool is_lamb : {false, true})
    expect_refused(
        is_lamb ? test::exact_lamb({}, kExchange, kProducts)
                : test::exact_adam({}, kExchange, kProducts),
        {missing(kWorker), missing(kServer), missing("rank"),
         missing("world_size"), missing(factors), missing(generators),
         missing("low_rank_steps"), number("low_rank_steps", -1),
         number("low_rank", -5), missing("low_rank"), text("low_rank"),
         values<std::int64_t>(factors, 5), values<float>(factors, 5),
         values<std::int64_t>(generators, 1), values<float>(generators, 5),
         number("average_bits", -5), values<std::int64_t>(kWorker, 5)});
}

}  // namespace
}  // namespace thinwire::optim::averages_test
