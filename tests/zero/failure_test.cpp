// SPDX-License-Identifier: Apache-2.0
// Ranks that are lost.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "support/errors.h"
#include "zero/endings.h"

namespace thinwire::zero::failure_test {
namespace {

using std::chrono::milliseconds;
using test::collect_some;
using test::expect_error;
using test::expect_soon;
using test::kFailure;
using test::kLong;
using test::ones;
using test::two_groups;
using test::unscaled;
using test::ZeroRun;

TEST(ZeroFailure, ARankLostInABackwardIsKnownToTheOthers) {
  for (const int stage : {1, 2})
    for (const std::size_t before : {0u, 1u, 4u})
      expect_soon([&] {
        const auto lose_one = [&] {
          test::run_ranks(
              "local", 3,
              [&](comm::Communicator& comm) {
                ZeroRun run(comm, two_groups(), test::adam_rule(),
                            unscaled(stage));
                run.step(ones(run));
                const Buffer grads = run.scaled(ones(run), DType::kFloat16);
                if (comm.rank() == 1) {
                  run.optimizer->gradients().begin({});
                  collect_some(run, grads, before);
                  throw std::runtime_error("disk full");
                }
                expect_error(kFailure, {"disk full"},
                             [&] { run.step(ones(run)); });
                expect_error(kFailure, {}, [&] {
                  static_cast<void>(
                      run.optimizer->whole_values().parameter("one"));
                });
              },
              kLong);
        };
        EXPECT_THROW(lose_one(), std::runtime_error) << "stage " << stage;
      });
}

TEST(ZeroFailure, ARankLostWhileWholeGradientsAreReducedIsKnown) {
  expect_soon([&] {
    const auto lose_one = [&] {
      test::run_ranks(
          "local", 3,
          [&](comm::Communicator& comm) {
            Buffer grads(two_groups().size(), DType::kFloat16);
            ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(1));
            const auto buckets = run.optimizer->gradients().buckets();
            if (comm.rank() == 2) {
              run.optimizer->early()->reduce(grads.view(), buckets.back());
              throw std::runtime_error("disk full");
            }
            expect_error(kFailure, {"disk full"}, [&] {
              for (std::size_t b = buckets.size(); b-- > 0;)
                run.optimizer->early()->reduce(grads.view(), buckets[b]);
              run.optimizer->step(run.params.view(), grads.view());
            });
          },
          kLong);
    };
    EXPECT_THROW(lose_one(), std::runtime_error);
  });
}

TEST(ZeroFailure, AHungRankIsKnownAfterTheTimeOut) {
  for (const int stage : {1, 2}) {
    std::atomic<int> failed = 0;
    test::run_ranks(
        "local", 3,
        [&](comm::Communicator& comm) {
          ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(stage));
          if (comm.rank() == 2) {
            while (failed < 2) std::this_thread::sleep_for(milliseconds(1));
            return;
          }
          expect_error(kFailure, {"rank"}, [&] { run.step(ones(run)); });
          ++failed;
        },
        {.timeout = milliseconds(500)});
  }
}

/// Adam that fails in a step, after it has updated some of its shard.
class FailingRule final : public optim::UpdateRule {
 public:
  FailingRule(const ParameterLayout& layout, bool fails)
      : adam_(layout, {}), fails_(fails) {}

  [[nodiscard]] std::string_view name() const noexcept override {
    return adam_.name();
  }
  [[nodiscard]] const ParameterLayout& layout() const noexcept override {
    return adam_.layout();
  }
  [[nodiscard]] std::string describe() const override {
    return adam_.describe();
  }
  void apply(std::int64_t step, const optim::UpdateArrays& arrays,
             ThreadPool& pool) override {
    adam_.apply(step, arrays, pool);
  }
  void apply_part(std::int64_t step, Range part,
                  const optim::UpdateArrays& arrays,
                  ThreadPool& pool) override {
    if (fails_ && part.offset > 2000) throw std::runtime_error("bit flip");
    adam_.apply_part(step, part, arrays, pool);
  }
  [[nodiscard]] View state(std::string_view key) override {
    return adam_.state(key);
  }
  [[nodiscard]] std::size_t num_groups() const noexcept override {
    return adam_.num_groups();
  }
  void set_learning_rate(std::size_t group, double rate) override {
    adam_.set_learning_rate(group, rate);
  }
  [[nodiscard]] double learning_rate(std::size_t group) const override {
    return adam_.learning_rate(group);
  }
  void set_weight_decay(std::size_t group, double decay) override {
    adam_.set_weight_decay(group, decay);
  }
  [[nodiscard]] double weight_decay(std::size_t group) const override {
    return adam_.weight_decay(group);
  }
  void add_to(optim::State& state, optim::Sharing sharing,
              const std::vector<Range>& elements) const override {
    adam_.add_to(state, sharing, elements);
  }
  [[nodiscard]] optim::Adoption adopt(StateDict& state) override {
    return adam_.adopt(state);
  }

 private:
  optim::Adam adam_;
  bool fails_;
};

// Parameters go with the stack while those of other buckets are gathered.
TEST(ZeroFailure, ARankLostInAnUpdateLeavesNothingUnderWay) {
  const ParameterLayout layout = ParameterLayout::of({{"all", {20'000}}});
  for (const int stage : {1, 2})
    expect_soon([&] {
      const auto lose_one = [&] {
        test::run_ranks(
            "local", 2,
            [&](comm::Communicator& comm) {
              const auto rule = [&](const ParameterLayout& shard) {
                return std::make_unique<FailingRule>(shard, comm.rank() == 1);
              };
              ZeroOptions options = unscaled(stage);
              options.exchange.bucket_elements = 1;
              ZeroRun run(comm, layout, rule, options);
              if (comm.rank() == 1) {
                run.step(ones(run));
                ADD_FAILURE() << "the rule did not fail";
              }
              expect_error(kFailure, {"bit flip"},
                           [&] { run.step(ones(run)); });
            },
            kLong);
      };
      EXPECT_THROW(lose_one(), std::runtime_error) << "stage " << stage;
    });
}

}  // namespace
}  // namespace thinwire::zero::failure_test
