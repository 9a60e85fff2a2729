// SPDX-License-Identifier: Apache-2.0
// When an outer loop syncs, what it sends, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/support.h"
#include "outer/support.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "thinwire/core/error.h"

namespace thinwire::test::outer_loop {

using optim::Phase;
using optim::StepReport;
using outer::OuterLoop;
using outer::OuterOptions;

namespace {

TEST(OuterLoop, SyncsAgainAnIntervalAfterSynchronize) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 4});
    Floats params = normal(layout.size(), 3);
    std::vector<Phase> phases;
    for (std::int64_t t = 1; t <= 8; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      phases.push_back(optimizer.step(params, grads).phase);
      if (t == 2) {
        optim::synchronize(optimizer, params);
        EXPECT_EQ(optim::steps_behind(optimizer), 0);
        EXPECT_EQ(optimizer.syncs(), 1);
        const auto sent = comm.counters().bytes_sent;
        optim::synchronize(optimizer, params);
        EXPECT_EQ(comm.counters().bytes_sent, sent);
      }
    }
    const std::vector<Phase> expected = {
        Phase::kLocal, Phase::kLocal,      Phase::kLocal, Phase::kLocal,
        Phase::kLocal, Phase::kCompressed, Phase::kLocal, Phase::kLocal};
    EXPECT_EQ(phases, expected);
  });
}

// n b/8 bytes and a step per cell each way, 16 bytes of agreement, and the
// sums of the owners' cells.
TEST(OuterLoop, SendsFewBitsPerSync) {
  const ParameterLayout layout = ParameterLayout::of({{"w", {64, 1024}}});
  run_ranks("local", 4, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2});
    Floats params = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 4; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      const StepReport report = optimizer.step(params, grads);
      const std::uint64_t records = 2 * (64 * 1024 / 2 + 64 * 4) * 3 / 4;
      const std::uint64_t scalars = 3 * (2 * 16 + 1 + 16 * 8);
      if (t % 2 == 0) {
        EXPECT_GE(report.bytes_sent, records);
        EXPECT_LE(report.bytes_sent, records + scalars + 64);
      }
    }
    EXPECT_GT(optimizer.residual_ratio(), 0.01);
    EXPECT_LT(optimizer.residual_ratio(), 1);
  });
}

TEST(OuterLoop, DriftTellsWhetherRanksMoveAlike) {
  const ParameterLayout layout = ParameterLayout::of({{"w", {8192}}});
  for (const bool alike : {true, false})
    run_ranks("local", 4, [&](comm::Communicator& comm) {
      OuterLoop optimizer(comm, layout, sgd_inside(layout, 0.1),
                          {.sync_every = 1, .bits_up = 0, .bits_down = 0});
      Floats params = normal(layout.size(), 3);
      Floats grads =
          normal(layout.size(),
                 100 + static_cast<std::uint32_t>(alike ? 0 : comm.rank()));
      const double drift = optimizer.step(params, grads).drift;
      EXPECT_NEAR(drift, alike ? 1 : 0.5, 0.03);
    });
}

// With SGD inside, the ranks' mean change has the direction of the gradients.
TEST(OuterLoop, RhoTellsWhetherSyncsMoveAlike) {
  const ParameterLayout layout = ParameterLayout::of({{"w", {8192}}});
  for (const double momentum : {0.0, 0.5})
    for (const int world : {1, 3})
      run_ranks("local", world, [&](comm::Communicator& comm) {
        OuterLoop optimizer(comm, layout, sgd_inside(layout, 0.1),
                            {.sync_every = 1,
                             .momentum = momentum,
                             .bits_up = 0,
                             .bits_down = 0});
        Floats params = normal(layout.size(), 3);
        const auto rho = [&](float factor) {
          Floats grads = normal(layout.size(), 7);
          for (float& g : grads) g *= factor;
          return optimizer.step(params, grads).rho;
        };
        EXPECT_EQ(rho(1), 0);
        EXPECT_NEAR(rho(2), 1, 1e-6);
        EXPECT_NEAR(rho(-1), -1, 1e-6);
        Floats others = normal(layout.size(), 8);
        EXPECT_NEAR(optimizer.step(params, others).rho, 0, 0.05);
      });
}

// What ranks have in common is compared when local steps begin, and later with
// `verify_every`.
TEST(OuterLoop, ComparesRanksBeforeLocalSteps) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    for (const bool parameters_differ : {true, false}) {
      OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2});
      Floats params = normal(layout.size(), 3);
      if (comm.rank() == 1 && parameters_differ) params[7] += 1;
      if (comm.rank() == 1 && !parameters_differ)
        optimizer.groups().set_learning_rate(0, 0.25);
      const Floats before = params;
      Floats grads = gradient(layout.size(), 1, comm.rank());
      expect_error(
          ErrorCode::kCommFailure,
          {parameters_differ ? "parameter odd" : "learning rate of group 0"},
          [&] { optimizer.step(params, grads); });
      EXPECT_EQ(optimizer.progress().steps, 0);
      EXPECT_TRUE(same_bytes(params, before));
    }
  });
}

TEST(OuterLoop, VerifiesLearningRatesInSyncs) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2},
                        {.verify_every = 2});
    Floats params = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 2; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      if (t == 1) {
        optimizer.step(params, grads);
        if (comm.rank() == 1) optimizer.groups().set_learning_rate(0, 0.25);
      } else {
        expect_error(ErrorCode::kCommFailure, {"learning rate of group 0"},
                     [&] { optimizer.step(params, grads); });
      }
    }
  });
}

// A rank that syncs in a step and one that syncs for an evaluation do not
// exchange with each other.
TEST(OuterLoop, RefusesCallsThatDifferBetweenRanks) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2});
    Floats params = normal(layout.size(), 3);
    Floats grads = gradient(layout.size(), 1, comm.rank());
    optimizer.step(params, grads);
    expect_error(ErrorCode::kFailedPrecondition, {"all ranks must make"}, [&] {
      if (comm.rank() == 0)
        optimizer.step(params, grads);
      else
        optimizer.local_steps()->synchronize(params);
    });
  });
}

// A rank that synchronize() has found to leave out a step is named by the next
// step.
TEST(OuterLoop, ReportsWhatAnEvaluationHasFound) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 9},
                        {.skip_nonfinite = true});
    Floats params = normal(layout.size(), 3);
    std::vector<int> named;
    for (std::int64_t t = 1; t <= 3; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      if (t == 1 && comm.rank() == 1) grads[0] = std::nanf("");
      named.push_back(optimizer.step(params, grads).nonfinite_rank);
      if (t == 1) optimizer.local_steps()->synchronize(params);
    }
    EXPECT_EQ(named, (std::vector<int>{-1, 1, -1}));
  });
}

TEST(OuterLoop, ALostRankEndsTheSyncOfTheOthers) {
  const ParameterLayout layout = small_layout();
  std::vector<int> named(3);
  EXPECT_THROW(
      run_ranks("local", 3,
                [&](comm::Communicator& comm) {
                  OuterLoop optimizer(comm, layout, adam_inside(layout),
                                      {.sync_every = 2});
                  Floats params = normal(layout.size(), 3);
                  Floats grads = gradient(layout.size(), 1, comm.rank());
                  optimizer.step(params, grads);
                  if (comm.rank() == 1) throw std::runtime_error("killed");
                  try {
                    optimizer.step(params, grads);
                  } catch (const Error& error) {
                    EXPECT_EQ(error.code(), ErrorCode::kCommFailure);
                    named[static_cast<std::size_t>(comm.rank())] = 1;
                    throw;
                  }
                }),
      std::runtime_error);
  EXPECT_EQ(named, (std::vector<int>{1, 0, 1}));
}

// ---- arguments

TEST(OuterOptions, NamesWhatIsOutOfRange) {
  const auto refused = [](const OuterOptions& options, const char* text) {
    expect_error(ErrorCode::kInvalidArgument, {text},
                 [&] { options.validate(); });
  };
  refused({}, "outer.sync_every must be >= 1, got 0");
  refused({.sync_every = 1, .sync_growth = -1},
          "outer.sync_growth must be >= 0, got -1");
  refused({.sync_every = 1, .learning_rate = 0},
          "outer.learning_rate must be finite and > 0, got 0");
  refused({.sync_every = 1, .momentum = 1},
          "outer.momentum must be in [0, 1), got 1");
  refused({.sync_every = 1, .bits_up = 2},
          "outer.bits_up must be 0, 4 or 8, got 2");
  refused({.sync_every = 1, .bits_down = 1},
          "outer.bits_down must be 0, 4 or 8, got 1");
  refused({.sync_every = 1, .warmup_steps = -2},
          "outer.warmup_steps must be >= 0, got -2");
  refused({.sync_every = 1, .warmup_bits = 16},
          "outer.warmup_bits must be 0, 4 or 8, got 16");
}

TEST(OuterLoop, RefusesOptionsThatDifferOnAllRanks) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 3, [&](comm::Communicator& comm) {
    expect_error(ErrorCode::kInvalidArgument, {"sync_every"}, [&] {
      OuterLoop(comm, layout, adam_inside(layout),
                {.sync_every = comm.rank() == 1 ? 4 : 5});
    });
  });
}

TEST(OuterLoop, RefusesAnInnerOptimizerWithLocalSteps) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    expect_error(ErrorCode::kInvalidArgument, {"without local steps"}, [&] {
      OuterLoop(comm, layout, inner(zero_one_adam({}), layout),
                {.sync_every = 4});
    });
    expect_error(ErrorCode::kInvalidArgument, {"make_inner"}, [&] {
      OuterLoop(comm, layout,
                [](comm::Communicator&) {
                  return std::unique_ptr<optim::Optimizer>();
                },
                {.sync_every = 4});
    });
  });
}

}  // namespace

}  // namespace thinwire::test::outer_loop
