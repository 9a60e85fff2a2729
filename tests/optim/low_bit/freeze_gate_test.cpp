// SPDX-License-Identifier: Apache-2.0
// Who may put off the end of the exact stage, and what that changes.
#include <gtest/gtest.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "support/ranks.h"
#include "support/same_bits.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"

namespace thinwire::optim {
namespace {

constexpr std::size_t kSize = 4097;

ParameterLayout layout() { return ParameterLayout::of({{"all", {kSize}, 0}}); }

template <class OnebitOptimizer>
std::unique_ptr<Optimizer> make(comm::Communicator& comm,
                                std::int64_t freeze_step) {
  if constexpr (std::is_same_v<OnebitOptimizer, OnebitAdam>)
    return std::make_unique<OnebitAdam>(
        comm, layout(), OnebitAdamOptions{.freeze = {.step = freeze_step}});
  else
    return std::make_unique<OnebitLamb>(
        comm, layout(), OnebitLambOptions{.freeze = {.step = freeze_step}});
}

// Steps of one rank, from parameters of its own.
struct Run {
  explicit Run(comm::Communicator& c) : comm(c) {}
  StepReport step(Optimizer& optimizer) {
    ++number;
    std::vector<float> grads(kSize);
    for (std::size_t i = 0; i < kSize; ++i)
      grads[i] =
          0.01f *
          (static_cast<float>((i * 7 + number * 13 +
                               static_cast<std::size_t>(comm.rank()) * 5) %
                              31) -
           15);
    return optimizer.step(params, grads);
  }
  comm::Communicator& comm;
  std::size_t number = 0;
  std::vector<float> params = std::vector<float>(kSize, 0.5f);
};

template <class T>
class FreezeGates : public testing::Test {};
using Optimizers = testing::Types<OnebitAdam, OnebitLamb>;
TYPED_TEST_SUITE(FreezeGates, Optimizers);

TYPED_TEST(FreezeGates, AnExchangeThatIsTimedChangesNoBit) {
  for (const int world : {2, 3})
    test::run_ranks("local", world, [](comm::Communicator& comm) {
      const auto plain = make<TypeParam>(comm, 4);
      const auto timed = make<TypeParam>(comm, 4);
      int asked = 0;
      timed->freeze()->set_gate([&](const FreezeRequest& request) {
        ++asked;
        EXPECT_EQ(request.step, 4);
        EXPECT_GT(request.time_exchange(), 0);
        return true;
      });
      Run a(comm), b(comm);
      for (int i = 0; i < 8; ++i) {
        const StepReport want = a.step(*plain);
        const StepReport got = b.step(*timed);
        EXPECT_EQ(got.phase, want.phase);
        EXPECT_EQ(got.phase, i < 4 ? Phase::kExact : Phase::kCompressed);
        EXPECT_TRUE(test::same_bytes(b.params, a.params));
      }
      EXPECT_EQ(asked, 1);
      const StateDict want = copy_of(plain->state()),
                      got = copy_of(timed->state());
      for (const char* key : {"worker_error", "server_error"})
        EXPECT_TRUE(test::same_bytes(got.array(key), want.array(key)));
    });
}

TYPED_TEST(FreezeGates, ANoPutsTheFreezeOffForATenthOfTheSteps) {
  test::run_ranks("local", 2, [](comm::Communicator& comm) {
    const auto optimizer = make<TypeParam>(comm, 18);
    std::vector<std::int64_t> asked;
    optimizer->freeze()->set_gate([&](const FreezeRequest& request) {
      asked.push_back(request.step);
      return request.step >= 21;
    });
    Run run(comm);
    for (int i = 0; i < 23; ++i) (void)run.step(*optimizer);
    EXPECT_EQ(asked, (std::vector<std::int64_t>{18, 19, 20, 22}));
    EXPECT_EQ(optimizer->progress().phase, Phase::kCompressed);
  });
}

TYPED_TEST(FreezeGates, ThatItIsPutOffIsPartOfTheState) {
  test::run_ranks("local", 2, [](comm::Communicator& comm) {
    const auto first = make<TypeParam>(comm, 30);
    first->freeze()->set_gate([](const FreezeRequest&) { return false; });
    Run run(comm);
    for (int i = 0; i < 30; ++i) (void)run.step(*first);
    const StateDict state = copy_of(first->state());
    EXPECT_EQ(state.integer("freeze_held_until"), 33);

    // Nobody asks here, but what was put off stays so.
    const auto second = make<TypeParam>(comm, 30);
    second->load_state_dict(state);
    for (int i = 31; i <= 34; ++i)
      EXPECT_EQ(run.step(*second).phase,
                i <= 33 ? Phase::kExact : Phase::kCompressed)
          << i;
  });
}

TYPED_TEST(FreezeGates, AStateThatWasNotHeldHasNoSuchKey) {
  test::run_ranks("local", 2, [](comm::Communicator& comm) {
    const auto optimizer = make<TypeParam>(comm, 2);
    Run run(comm);
    for (int i = 0; i < 3; ++i) (void)run.step(*optimizer);
    EXPECT_FALSE(copy_of(optimizer->state()).has_scalar("freeze_held_until"));
  });
}

TYPED_TEST(FreezeGates, OneRankIsNotAsked) {
  test::run_ranks("local", 1, [](comm::Communicator& comm) {
    const auto optimizer = make<TypeParam>(comm, 2);
    optimizer->freeze()->set_gate([](const FreezeRequest&) -> bool {
      ADD_FAILURE() << "asked";
      return false;
    });
    Run run(comm);
    for (int i = 0; i < 3; ++i) (void)run.step(*optimizer);
    EXPECT_EQ(optimizer->progress().phase, Phase::kCompressed);
  });
}

}  // namespace
}  // namespace thinwire::optim
