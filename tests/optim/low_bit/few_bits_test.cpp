// SPDX-License-Identifier: Apache-2.0
// FreezeOptions::warmup_bits: exact steps that average gradients over 4 or 8
// bits. Their arithmetic is in onebit_adam_test.cpp and by_host_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "optim/low_bit/cases.h"
#include "optim/low_bit/late_cases.h"
#include "optim/naive/drive.h"
#include "optim/other_ranks.h"
#include "optim/states.h"
#include "support/converted.h"
#include "support/errors.h"
#include "support/kept_log.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::optim::few_bits_test {
namespace {

using Floats = std::vector<float>;

OnebitAdamOptions with_bits(int bits, std::int64_t freeze_step = 1000) {
  OnebitAdamOptions o{.learning_rate = 0.02,
                      .freeze = {.step = freeze_step, .warmup_bits = bits}};
  o.compression.exchange.bucket_elements = 900;
  return o;
}

std::vector<float> array_of(const Optimizer& optimizer, const char* name) {
  return test::floats_of(copy_of(optimizer.state()).array(name));
}

// ---- begun during backward

using HandOver =
    std::function<void(Optimizer&, View grads, const ParameterLayout&)>;

void reduce_pieces(Optimizer& optimizer, View grads,
                   const ParameterLayout& layout, bool all) {
  if (!optimizer.early()->reduces()) return;
  constexpr std::size_t kPiece = kernels::kSumChunk;
  const std::size_t pieces = (layout.size() + kPiece - 1) / kPiece;
  for (std::size_t k = pieces; k-- > 0;) {
    if (!all && k % 3 == 1) continue;
    optimizer.early()->reduce(
        grads, {k * kPiece, std::min(kPiece, layout.size() - k * kPiece)});
  }
}

const std::vector<HandOver>& hand_overs() {
  static const std::vector<HandOver> all = {
      [](auto&, View, auto&) {},
      [](auto& o, View g, auto& l) { reduce_pieces(o, g, l, true); },
      [](auto& o, View g, auto& l) { reduce_pieces(o, g, l, false); },
      [](auto& o, View g, auto& l) {
        if (o.early()->reduces()) o.early()->reduce(g, {0, l.size()});
      }};
  return all;
}

struct After {
  Floats params;
  double norm = 0;
  StateDict state;
};

// Parameters after every step, of every rank, flat or by host. Rank 1 has a
// gradient that is not finite in two of them, at another place each.
std::vector<std::vector<After>> run(test::Ranks ranks,
                                    const test::MakeOptimizer& make,
                                    DType dtype, const HandOver& hand_over) {
  const ParameterLayout layout = test::late_layout();
  std::vector<std::vector<After>> all(static_cast<std::size_t>(ranks.size()));
  test::run_by_host(ranks, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout);
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 8; ++t) {
      // One scale is wrong for what has begun.
      const double scale = dtype == DType::kFloat16 && t >= 3 ? 4 : 1;
      Floats values = test::late_gradient(layout, t, comm.rank());
      for (float& value : values) value *= static_cast<float>(scale);
      if (comm.rank() == 1 && (t == 2 || t == 4))
        values[static_cast<std::size_t>(t) * 700] =
            std::numeric_limits<float>::infinity();
      Buffer grads = test::converted(values, dtype);
      hand_over(*optimizer, grads.view(), layout);
      const StepReport report = optimizer->step(
          {.params = params, .grads = grads.view(), .loss_scale = scale});
      EXPECT_EQ(report.applied, t != 2 && t != 4) << t;
      if (!report.applied) {
        EXPECT_TRUE(report.residuals_cleared) << t;
      }
      all[static_cast<std::size_t>(comm.rank())].push_back(
          {params, report.grad_norm, copy_of(optimizer->state())});
    }
  });
  return all;
}

TEST(WarmUpInFewBits, BegunDuringBackwardHasTheSameBits) {
  for (const test::Ranks ranks : {test::Ranks{2, 1}, {3, 1}, {2, 2}})
    for (const DType dtype :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
      for (const bool is_lamb : {false, true}) {
        OnebitLambOptions lamb{.learning_rate = 0.02,
                               .freeze = {.step = 5, .warmup_bits = 8}};
        lamb.compression.exchange.bucket_elements = 900;
        const auto make = is_lamb ? test::onebit_lamb(lamb)
                                  : test::onebit_adam(with_bits(4, 5));
        const auto want = run(ranks, make, dtype, hand_overs()[0]);
        for (std::size_t h = 1; h < hand_overs().size(); ++h) {
          const auto got = run(ranks, make, dtype, hand_overs()[h]);
          for (std::size_t r = 0; r < want.size(); ++r)
            for (std::size_t t = 0; t < want[r].size(); ++t) {
              SCOPED_TRACE(fmt::format("{} of {}x{}, hand-over {}, step {}", r,
                                       ranks.hosts, ranks.per_host, h, t + 1));
              ASSERT_EQ(got[r][t].params, want[r][t].params);
              ASSERT_EQ(got[r][t].norm, want[r][t].norm);
              // A scale that changes costs residuals if it was guessed wrong.
              if (dtype != DType::kFloat16) {
                ASSERT_TRUE(
                    test::same_state(got[r][t].state, want[r][t].state));
              }
            }
        }
      }
}

TEST(WarmUpInFewBits, RefusesCallsThatWouldDisturbItDuringBackward) {
  const ParameterLayout layout = test::late_layout();
  const Range last{2048, layout.size() - 2048};
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, with_bits(8));
    Floats params = test::normal(layout.size(), 3);
    (void)test::step_of(optimizer, params, 1, comm.rank());
    const StateDict state = copy_of(optimizer.state());
    auto grads = test::gradient(layout.size(), 2, comm.rank());
    optimizer.early()->reduce(grads, last);
    for (const Range& again : {last, Range{3072, 1024}})
      test::expect_invalid({"range", "apart from ranges in flight"},
                           [&] { optimizer.early()->reduce(grads, again); });
    test::expect_invalid({"range", "1024"}, [&] {
      optimizer.early()->reduce(grads, {0, 5});
    });
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { (void)copy_of(optimizer.state()); },
             [&] { optimizer.load_state_dict(state); },
             [&] { (void)optimizer.residual_ratio(); }})
      test::expect_error(ErrorCode::kFailedPrecondition,
                         {"between reduce() and step()", "warmup_bits"}, call);
    auto others = grads;
    test::expect_invalid({"StepInput.grads", "reduce()"},
                         [&] { (void)optimizer.step(params, others); });
    EXPECT_TRUE(optimizer.step(params, grads).applied);
  });
}

TEST(WarmUpInFewBits, MayBeDestroyedInFlight) {
  const ParameterLayout layout = test::late_layout();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    auto grads = test::gradient(layout.size(), 1, comm.rank());
    {
      OnebitAdam optimizer(comm, layout, with_bits(8));
      optimizer.early()->reduce(grads, {1024, layout.size() - 1024});
    }
    comm.barrier();
  });
}

// Also without the scale, as earlier versions saved it, and on other ranks.
TEST(WarmUpInFewBits, KeepsResidualsThatAreLoadedWithALossScale) {
  const ParameterLayout layout = test::late_layout();
  constexpr double kScale = 128;
  const auto step = [&](Optimizer& optimizer, Floats& params, std::int64_t t,
                        int rank, const HandOver& hand_over) {
    Floats grads = test::late_gradient(layout, t, rank);
    for (float& g : grads) g *= static_cast<float>(kScale);
    hand_over(optimizer, View(grads), layout);
    (void)optimizer.step(
        {.params = params, .grads = View(grads), .loss_scale = kScale});
  };
  std::vector<test::Saved> saved(2);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, with_bits(4));
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 2; ++t)
      step(optimizer, params, t, comm.rank(), hand_overs()[0]);
    saved[static_cast<std::size_t>(comm.rank())] = test::save(optimizer);
  });
  for (const bool has_scale : {true, false}) {
    if (!has_scale)
      for (test::Saved& one : saved) one.what.common.erase("last_loss_scale");
    for (const int world : {2, 3})
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        const auto after = [&](const HandOver& hand_over) {
          OnebitAdam optimizer(comm, layout, with_bits(4));
          test::adopt(comm, optimizer, saved);
          Floats params = test::normal(layout.size(), 3);
          step(optimizer, params, 3, comm.rank(), hand_over);
          return copy_of(optimizer.state());
        };
        EXPECT_TRUE(
            test::same_state(after(hand_overs()[1]), after(hand_overs()[0])))
            << world << " ranks, scale saved: " << has_scale;
      });
  }
}

// Finite everywhere, but not their sum.
TEST(WarmUpInFewBits, SkipsIfASumOverflows) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {1500}}});
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, with_bits(8));
    Floats params = test::normal(layout.size(), 3);
    const Floats before = params;
    Floats grads(layout.size(), 1e38f);
    (void)optimizer.step(params, grads);
    params = before;
    grads.assign(layout.size(), 1e38f);
    grads[3] = 3.4e38f;
    const StepReport report = optimizer.step(
        {.params = params, .grads = View(grads), .loss_scale = 0.5});
    EXPECT_FALSE(report.applied);
    EXPECT_TRUE(report.residuals_cleared);
    EXPECT_EQ(params, before);
    EXPECT_TRUE(test::step_of(optimizer, params, 1, comm.rank()).applied);
  });
}

// ---- options, and what a state says

std::int64_t bits_in(const Optimizer& optimizer) {
  const StateDict state = copy_of(optimizer.state());
  return state.has_scalar("warmup_bits") ? state.integer("warmup_bits") : 0;
}

TEST(WarmupBits, FollowFromTheRunsLengthIfNothingElseIsNamed) {
  EXPECT_EQ(warmup_bits_of({}), 0);
  EXPECT_EQ(warmup_bits_of({.step = 5}), 0);
  EXPECT_EQ(warmup_bits_of({.total_steps = 300}), 8);
  EXPECT_EQ(warmup_bits_of({.step = 5, .total_steps = 300}), 0);
  EXPECT_EQ(warmup_bits_of({.step = kAutoFreeze, .total_steps = 300}), 0);
  EXPECT_EQ(warmup_bits_of({.total_steps = 300, .warmup_bits = 0}), 0);
  EXPECT_EQ(warmup_bits_of({.total_steps = 300, .warmup_bits = 4}), 4);
  EXPECT_EQ(warmup_bits_of({.step = 5, .warmup_bits = 4}), 4);
}

TEST(WarmupBits, ThatNobodyNamedAreLoggedOnce) {
  const ParameterLayout layout = test::late_layout();
  const auto told = [&](const FreezeOptions& freeze) {
    test::KeptLog log;
    (void)test::train(2, layout, test::onebit_adam({.freeze = freeze}), 2);
    return log.with("warmup_bits");
  };
  const std::vector<std::string> lines = told({.total_steps = 300});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("onebit_adam: total_steps is given"),
            std::string::npos);
  EXPECT_NE(lines[0].find("over 8 bits"), std::string::npos);
  EXPECT_TRUE(told({.step = 60, .total_steps = 300, .warmup_bits = 8}).empty());
  EXPECT_TRUE(told({.total_steps = 300, .warmup_bits = 0}).empty());
}

TEST(WarmupBits, OfZeroOneAdamFollowFromTheRunsLengthAndAreLoggedOnce) {
  const ParameterLayout layout = test::late_layout();
  const auto told = [&](const ZeroOneAdamOptions& options) {
    test::KeptLog log;
    (void)test::train(2, layout, test::zero_one_adam(options), 2);
    return log.with("warmup_bits");
  };
  const std::vector<std::string> lines = told({.total_steps = 300});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("zero_one_adam: total_steps is given, so steps that "
                          "update the variance average gradients over 4 bits"),
            std::string::npos)
      << lines[0];
  EXPECT_TRUE(told({.total_steps = 300, .warmup_bits = 4}).empty());
  EXPECT_TRUE(told({.total_steps = 300, .warmup_bits = 0}).empty());
}

// A run that began with DeepSpeed's stages keeps them, and the other way round.
TEST(WarmupBits, OfZeroOneAdamAreThoseOfTheState) {
  const ParameterLayout layout = test::late_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const ZeroOneAdamOptions unnamed, by_run{.total_steps = 300};
    const auto second_step = [&](const ZeroOneAdamOptions& first,
                                 const ZeroOneAdamOptions& second) {
      ZeroOneAdam begun(comm, layout, first);
      Floats params = test::normal(layout.size(), 3);
      (void)test::step_of(begun, params, 1, comm.rank());
      ZeroOneAdam resumed(comm, layout, second);
      (void)resumed.load_state_dict(copy_of(begun.state()));
      const int bits = test::step_of(resumed, params, 2, comm.rank()).bits;
      const StateDict state = copy_of(resumed.state());
      return std::pair(bits, state.integer("var_update_scaler"));
    };
    EXPECT_EQ(second_step(unnamed, by_run), std::pair(0, std::int64_t{16}));
    EXPECT_EQ(second_step(by_run, unnamed), std::pair(4, std::int64_t{8}));
  });
}

TEST(WarmupBits, AreThoseOfTheStateUnlessTheyAreNamed) {
  const ParameterLayout layout = test::late_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto begun = [&](const FreezeOptions& freeze) {
      auto optimizer = std::make_unique<OnebitAdam>(
          comm, layout, OnebitAdamOptions{.freeze = freeze});
      return optimizer;
    };
    const auto trained = [&](const FreezeOptions& freeze) {
      auto optimizer = begun(freeze);
      Floats params = test::normal(layout.size(), 3);
      for (std::int64_t t = 1; t <= 2; ++t)
        (void)test::step_of(*optimizer, params, t, comm.rank());
      return copy_of(optimizer->state());
    };
    const StateDict exact = trained({.step = 50});
    const StateDict by_run = trained({.total_steps = 300});
    const StateDict four = trained({.step = 50, .warmup_bits = 4});
    EXPECT_FALSE(exact.has_scalar("warmup_bits"));
    EXPECT_EQ(by_run.integer("warmup_bits"), 8);

    const auto after = [&](const FreezeOptions& freeze, const StateDict& state,
                           std::size_t notes = 0) {
      auto optimizer = begun(freeze);
      EXPECT_EQ(optimizer->load_state_dict(state).size(), notes);
      Floats params = test::normal(layout.size(), 3);
      const int bits = test::step_of(*optimizer, params, 3, comm.rank()).bits;
      EXPECT_EQ(bits_in(*optimizer), bits);
      return bits;
    };
    EXPECT_EQ(after({.step = 50}, by_run), 8);
    EXPECT_EQ(after({.step = 50}, four), 4);
    EXPECT_EQ(after({.total_steps = 300}, four), 4);
    EXPECT_EQ(after({.total_steps = 300}, exact), 0);
    EXPECT_EQ(after({.step = 50, .warmup_bits = 8}, exact), 8);
    EXPECT_EQ(after({.step = 50, .warmup_bits = 8}, four), 8);
    EXPECT_EQ(after({.step = 50, .warmup_bits = 0}, four, 1), 0);
    auto dropping = begun({.step = 50, .warmup_bits = 0});
    const Notes notes = dropping->load_state_dict(four);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("dropped"), std::string::npos);
    EXPECT_FALSE(copy_of(dropping->state()).has_array("worker_error"));

    StateDict wrong = test::without(four, "warmup_bits");
    wrong.put_integer("warmup_bits", 5);
    test::expect_error(ErrorCode::kCorruptCheckpoint, {"warmup_bits", "5"},
                       [&] { begun({.step = 50})->load_state_dict(wrong); });
  });
}

// If a run continues under another freeze_step, its residuals become those of
// the momentum at once, or are dropped with the compressed steps.
TEST(WarmupBits, BelongToTheStageThatOptionsName) {
  const ParameterLayout layout = test::late_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdam one(comm, layout, with_bits(8, 4));
    Floats params = test::normal(layout.size(), 3);
    const auto step = [&](OnebitAdam& optimizer, std::int64_t t) {
      return test::step_of(optimizer, params, t, comm.rank());
    };
    for (std::int64_t t = 1; t <= 2; ++t) (void)step(one, t);
    OnebitAdam earlier(comm, layout, with_bits(8, 1));
    EXPECT_FALSE(earlier.load_state_dict(copy_of(one.state())).empty());
    EXPECT_EQ(earlier.progress().phase, Phase::kCompressed);
    const Floats kept = array_of(one, "worker_error");
    const Floats got = array_of(earlier, "worker_error");
    // An element is inactive if all its averages have been rounded to 0.
    const StateDict frozen = copy_of(earlier.state());
    const auto elements = frozen.array("participation").as<std::uint8_t>();
    for (std::size_t i = 0; i < kept.size(); ++i)
      ASSERT_EQ(got[i],
                elements[i] == 1 ? static_cast<float>(1 - 0.9) * kept[i] : 0);
    (void)step(earlier, 3);

    for (std::int64_t t = 3; t <= 6; ++t) (void)step(one, t);
    EXPECT_EQ(one.progress().phase, Phase::kCompressed);
    OnebitAdam later(comm, layout, with_bits(8, 9));
    EXPECT_FALSE(later.load_state_dict(copy_of(one.state())).empty());
    EXPECT_EQ(later.progress().phase, Phase::kExact);
    const StepReport report = step(later, 7);
    EXPECT_EQ(report.bits, 8);
    for (std::int64_t t = 8; t <= 10; ++t) (void)step(later, t);
    EXPECT_EQ(later.progress().phase, Phase::kCompressed);
  });
}

// A single rank adds the residuals of several ranks to its first step.
TEST(WarmupBits, OfSeveralRanksLeaveResidualsForASingleRank) {
  const ParameterLayout layout = test::grouped_layout();
  std::vector<test::Saved> saved(3);
  OnebitAdamOptions o = with_bits(4);
  o.beta1 = 0;
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, o);
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 3; ++t)
      (void)test::step_of(optimizer, params, t, comm.rank());
    saved[static_cast<std::size_t>(comm.rank())] = test::save(optimizer);
  });
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    comm::run_local_ranks(1, [&](comm::Communicator& comm) {
      OnebitAdam optimizer(comm, layout, o);
      test::adopt(comm, optimizer, saved);
      const Floats e = array_of(optimizer, "worker_error");
      const Floats d = array_of(optimizer, "server_error");
      Floats params = test::normal(layout.size(), 3);
      Buffer grads =
          test::converted(test::gradient(layout.size(), 4, 0), dtype);
      const Floats g = test::floats_of(std::as_const(grads).view());
      const StepReport report = optimizer.step(params, grads.view());
      EXPECT_TRUE(report.applied);
      EXPECT_EQ(report.bits, 0);
      const Floats m = array_of(optimizer, "exp_avg");
      for (std::size_t i = 0; i < m.size(); ++i)
        ASSERT_EQ(m[i], g[i] + (d[i] + e[i])) << i;
      EXPECT_FALSE(copy_of(optimizer.state()).has_array("worker_error"));
      EXPECT_EQ(optimizer.step(params, grads.view()).bits, 0);
    });
}

}  // namespace
}  // namespace thinwire::optim::few_bits_test
