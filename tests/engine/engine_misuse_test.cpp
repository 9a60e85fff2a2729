// SPDX-License-Identifier: Apache-2.0
// What loops do by mistake: they change what is the engine's between backward
// and step(), or make different numbers of steps.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <thread>

#include "comm/host_name.h"
#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::test::engine_misuse_test {
namespace {

using test::config_of;

void scale(View values, float factor) {
  std::vector<float> all = floats(values);
  for (float& value : all) value *= factor;
  kernels::convert(all, values);
}

struct Loop {
  std::string optimizer = "adam";
  int world = 2;
  DType dtype = DType::kFloat32;
  std::int64_t backwards = 1;
  bool overlap = true;
  int stage = 0;
};

// Compressed and local steps come by the eighth.
std::vector<Loop> loops() {
  constexpr DType kHalf = DType::kFloat16;
  return {{.world = 1},
          {.world = 3, .dtype = kHalf, .backwards = 2},
          {.world = 2, .overlap = false},
          {.world = 3, .dtype = kHalf, .backwards = 2, .overlap = false},
          {.optimizer = "onebit_adam", .world = 1, .dtype = kHalf},
          {.optimizer = "onebit_adam", .world = 3, .backwards = 2},
          {.optimizer = "onebit_lamb", .dtype = kHalf},
          {.optimizer = "zero_one_adam", .world = 3},
          {.optimizer = "zero_one_adam", .dtype = kHalf, .backwards = 2},
          {.world = 3, .stage = 1},
          {.dtype = kHalf, .backwards = 2, .stage = 1},
          {.world = 1, .backwards = 2, .stage = 2},
          {.world = 3, .dtype = kHalf, .stage = 2}};
}

Config config_of(const Loop& loop) {
  Config config =
      loop.stage == 0
          ? config_of(loop.optimizer, loop.dtype, loop.backwards)
          : test::zero_config(loop.stage, loop.dtype, loop.backwards);
  config.comm.overlap = loop.overlap;
  return config;
}

// Runs steps of `loop`, in the `bad`th of which `change` is made on the ranks
// that `makes_it` names, and expects that it is found there and not before.
void expect_found(const Loop& loop, std::int64_t bad, int culprits,
                  const std::function<void(Sharded&)>& change,
                  std::string_view what) {
  std::atomic<int> found = 0;
  comm::run_local_ranks(
      loop.world,
      [&](comm::Communicator& comm) {
        Sharded sharded(comm, config_of(loop));
        const auto step = [&](std::int64_t t, bool changes) {
          EngineReport report;
          for (std::int64_t micro = 0; micro < loop.backwards; ++micro) {
            sharded.backward({t, micro}, sharded.unused());
            if (changes) change(sharded);
            report = sharded.engine.step();
          }
          EXPECT_TRUE(report.at_boundary);
        };
        for (std::int64_t t = 1; t < bad; ++t) step(t, false);
        const bool changes = comm.rank() < culprits;
        try {
          step(bad, changes);
          EXPECT_FALSE(changes);
          // After steps that exchange nothing.
          for (std::int64_t t = bad + 1; t < bad + 20; ++t) step(t, false);
          ADD_FAILURE() << "rank " << comm.rank() << " has got no error";
        } catch (const Error& error) {
          // Another rank may have been first.
          const std::string text = error.what();
          const bool is_told = text.find("gave up: step: ") != text.npos;
          EXPECT_TRUE(is_told || changes) << text;
          EXPECT_EQ(error.code(),
                    is_told ? ErrorCode::kCommFailure : kPrecondition);
          EXPECT_NE(text.find("between backward and step()"), text.npos);
          EXPECT_NE(text.find(what), text.npos) << text;
          found += is_told ? 0 : 1;
        }
      },
      kPatient);
  EXPECT_GE(found, 1);
}

TEST(EngineMisuse, AScaledGradientIsFound) {
  for (const Loop& loop : loops()) {
    if (!keeps_gradients(config_of(loop), loop.world)) continue;
    SCOPED_TRACE(loop.optimizer + " " + std::to_string(loop.world) +
                 std::string(to_string(loop.dtype)));
    for (const int culprits : {1, loop.world})
      for (const std::int64_t bad : {1, 8})
        expect_found(
            loop, bad, culprits,
            [](Sharded& sharded) { scale(sharded.grads.view(), 0.5f); },
            "gradient_clipping");
  }
}

TEST(EngineMisuse, AStepOfAnotherOptimizerIsFound) {
  for (const Loop& loop : loops())
    for (const int culprits : {1, loop.world})
      expect_found(
          loop, 3, culprits,
          [](Sharded& sharded) { scale(sharded.params.view(), 0.75f); },
          "other optimizer");
}

// Only one parameter has a gradient, behind zeros and what is not finite.
TEST(EngineMisuse, IsFoundInTheOneParameterWithAGradient) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::size_t at : {0, 1, 63, 64, 1000, 16769})
    for (const float before : {0.0f, -0.0f, inf}) {
      comm::run_local_ranks(1, [&](comm::Communicator& comm) {
        Sharded driven(comm, config_of("adam"));
        const Parameter& p = driven.layout.parameter("wide");
        const auto own = driven.grads.view().as<float>().subspan(p.offset);
        for (int round = 0; round < 2; ++round) {
          driven.engine.begin_backward();
          std::fill_n(own.begin(), at, before);
          own[at] = 3;
          driven.engine.end_backward();
          if (round == 0) driven.engine.step();
        }
        own[at] = 2;
        expect_error(kPrecondition, {"the gradient of 'wide'"},
                     [&] { driven.engine.step(); });
      });
    }
}

TEST(EngineMisuse, ReadingOrChangingInTimeIsAllowed) {
  for (const Loop& loop : loops())
    comm::run_local_ranks(loop.world, [&](comm::Communicator& comm) {
      Sharded sharded(comm, config_of(loop));
      for (std::int64_t t = 1; t <= 8; ++t) {
        for (std::int64_t micro = 0; micro < loop.backwards; ++micro) {
          sharded.backward({t, micro}, sharded.unused());
          const auto seen = floats(sharded.grads.view());
          sharded.engine.begin_evaluation();
          sharded.engine.end_evaluation();
          EXPECT_EQ(floats(sharded.grads.view()), seen);
          EXPECT_NO_THROW(sharded.engine.step());
        }
        scale(sharded.params.view(), 1 - 0x1p-9f);
      }
    });
}

// ---- means

TEST(EngineMean, AddsInTheOrderOfRanks) {
  for (const int world : {1, 2, 3, 4})
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      Sharded driven(comm, config_of("adam"));
      const auto value = [](int rank) { return rank == 1 ? 1e16 : 1.0; };
      double sum = 0;
      for (int rank = 0; rank < world; ++rank) sum += value(rank);
      EXPECT_EQ(driven.engine.mean(value(comm.rank())), sum / world);
      driven.backward({.step = 1});
      EXPECT_EQ(driven.engine.mean(0.1), 0.1 * world / world);
      EXPECT_TRUE(driven.engine.step().applied);
      const double nan = std::numeric_limits<double>::quiet_NaN();
      const bool is_last = comm.rank() == world - 1;
      EXPECT_TRUE(std::isnan(driven.engine.mean(is_last ? nan : 1)));
    });
}

// ---- ranks that make different numbers of steps

TEST(EngineUneven, ARankThatHasEndedIsNamedWithTheWayOut) {
  for (const Loop& loop : loops()) {
    if (loop.world == 1) continue;
    comm::run_local_ranks(
        loop.world,
        [&](comm::Communicator& comm) {
          Sharded sharded(comm, config_of(loop));
          const int last = loop.world - 1;
          const auto train = [&](std::int64_t steps) {
            for (std::int64_t t = 1; t <= steps; ++t)
              for (std::int64_t micro = 0; micro < loop.backwards; ++micro)
                sharded.step({t, micro});
          };
          if (comm.rank() == last) return train(6);
          const std::string rank = "rank " + std::to_string(last);
          // 0/1 Adam's local steps exchange nothing.
          expect_error(ErrorCode::kCommFailure,
                       {rank + " has left", "drop_last", "as many steps"},
                       [&] { train(40); });
        },
        kPatient);
  }
}

// As when its machine is gone: it sends nothing any more, not even a farewell.
TEST(EngineUneven, OfARankThatFallsSilentTheHostIsNamedBeforeItsBatches) {
  comm::run_local_ranks(
      3,
      [](comm::Communicator& comm) {
        Sharded driven(comm, config_of("adam"));
        if (comm.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::seconds(4));
          return;
        }
        try {
          driven.step({.step = 1});
          ADD_FAILURE() << "nothing was thrown";
        } catch (const Error& error) {
          const std::string text = error.what();
          const auto host = text.find(
              "timed out waiting for rank 2 (on host " + comm::host_name() +
              ": the machine or its network may be gone");
          EXPECT_NE(host, std::string::npos) << text;
          EXPECT_LT(host, text.find("drop_last")) << text;
        }
      },
      {.timeout = std::chrono::seconds(1)});
}

TEST(EngineUneven, RankInAnotherCallIsNamed) {
  for (const char* optimizer : {"adam", "onebit_adam"})
    comm::run_local_ranks(
        2,
        [&](comm::Communicator& comm) {
          Sharded driven(comm, config_of(optimizer));
          for (std::int64_t t = 1; t <= 6 - comm.rank(); ++t) {
            if (t <= 5) {
              driven.step({.step = t});
              continue;
            }
            expect_error(ErrorCode::kCommFailure, {"rank 1", "drop_last"},
                         [&] { driven.step({.step = t}); });
          }
          if (comm.rank() == 1)
            expect_error(ErrorCode::kCommFailure, {"rank 0"},
                         [&] { (void)driven.engine.mean(1); });
        },
        kPatient);
}

TEST(EngineUneven, MeansAreOfAsManySteps) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Sharded driven(comm, config_of("zero_one_adam"));
    std::int64_t t = 1;
    for (; driven.engine.optimizer().progress().phase != optim::Phase::kLocal;
         ++t) {
      driven.step({.step = t});
    }
    if (comm.rank() == 0) {  // local: rank 1 does not miss it yet
      driven.backward({.step = t});
      driven.engine.step();
    }
    expect_error(kPrecondition, {"different numbers", "drop_last"},
                 [&] { (void)driven.engine.mean(1); });
  });
}

}  // namespace
}  // namespace thinwire::engine::test::engine_misuse_test
