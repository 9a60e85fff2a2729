// SPDX-License-Identifier: Apache-2.0
// Calls that an Engine refuses, on which ranks, and that it continues
// afterwards.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::engine::test::engine_errors_test {
namespace {

Config config_of(DType dtype = DType::kFloat32) {
  return test::config_of("onebit_adam", dtype, 2);
}

// Every mistake at every point, by one rank or by all, and no bit has changed.
void expect_nothing_changes(comm::Communicator& comm, const Config& config) {
  ByHand hand(comm, config, {.bucket_elements = 16384});
  Sharded sharded(comm, config);
  Engine& engine = sharded.engine;
  const auto refuses = [&](std::string_view part, auto&& call) {
    if (comm.rank() == 1) expect_error(kPrecondition, {part}, [&] { call(); });
  };
  const auto no_gradient_yet = [&] {
    refuses("full_gradient",
            [&] { (void)engine.whole_values().gradient("wide"); });
  };
  const auto between_backwards = [&] {
    refuses("outside of a backward", [&] { engine.gradient_ready(0); });
    refuses("no begin_backward", [&] { engine.end_backward(); });
    refuses("there is none", [&] { engine.end_evaluation(); });
    engine.cancel_backward();  // not an error, and changes nothing
    engine.begin_evaluation();
    refuses("inside another", [&] { engine.begin_evaluation(); });
    refuses("inside an evaluation", [&] { engine.begin_backward(); });
    refuses("inside an evaluation", [&] { engine.step(); });
    engine.end_evaluation();
  };
  const auto inside_of_a_window = [&] {
    refuses("inside a window", [&] { (void)engine.state_dict(); });
    refuses("inside a window", [&] { engine.load_state_dict({}); });
  };
  const auto hand_over = [&](const Buffer& own, std::size_t k) {
    const Parameter& p = sharded.layout.parameters()[k];
    const ConstView values = own.view().subview(p.offset, p.size);
    if (p.size > 0 && sharded.keeps) {
      refuses("is in the array of all gradients",
              [&] { engine.gradient_ready(k, values); });
    } else if (p.size > 0) {
      refuses("'" + p.name + "' is missing", [&] { engine.gradient_ready(k); });
      const ConstView most = values.subview(0, p.size - 1);
      const Buffer twice(p.size, DType::kFloat64);
      for (const ConstView& wrong : {most, ConstView(twice.view())})
        if (!wrong.empty())
          expect_error(kArgument, {"'" + p.name + "'"},
                       [&] { engine.gradient_ready(k, wrong); });
    }
    sharded.hand_over(own, k);
    refuses("'" + p.name + "' was ready before",
            [&] { engine.gradient_ready(k, values); });
    expect_error(kArgument, {"index must be below 8, got 8"},
                 [&] { engine.gradient_ready(8); });
  };
  const std::int64_t backwards = *config.gradient_accumulation_steps;
  for (std::int64_t t = 1; t <= 5; ++t) {
    hand.step(t, backwards, backwards, false);
    refuses("no backward", [&] { engine.step(); });
    between_backwards();
    for (std::int64_t micro = 0; micro < backwards; ++micro) {
      no_gradient_yet();
      engine.begin_backward();
      no_gradient_yet();
      refuses("inside another backward", [&] { engine.begin_backward(); });
      refuses("inside a backward", [&] { engine.step(); });
      refuses("inside a backward", [&] { engine.begin_evaluation(); });
      refuses("inside a backward",
              [&] { engine.set_accumulation_boundary(true); });
      inside_of_a_window();
      const Buffer own = sharded.gradients({t, micro});
      for (std::size_t k = sharded.layout.parameters().size(); k-- > 0;)
        hand_over(own, k);
      engine.end_backward();
      between_backwards();
      inside_of_a_window();
      expect_error(kArgument, {"nobody"},
                   [&] { (void)engine.whole_values().gradient("nobody"); });
      engine.step();
    }
    ASSERT_EQ(floats(sharded.params.view()), floats(hand.params.view())) << t;
  }
}

TEST(EngineErrors, ChangeNothing) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    for (const Config& config : {config_of(dtype), test::zero_config(1, dtype),
                                 test::zero_config(2, dtype)})
      comm::run_local_ranks(2, [&](comm::Communicator& comm) {
        expect_nothing_changes(comm, config);
      });
}

// An Engine that is refused touches neither parameters nor gradients.
class Refused {
 public:
  explicit Refused(comm::Communicator& comm, DType dtype = DType::kFloat32,
                   std::size_t size = model_layout().size())
      : params(initial_params(size, comm.rank())),
        grads(size, 5.0f),
        comm_(comm),
        dtype_(dtype) {}

  void expect(ErrorCode code, std::initializer_list<std::string_view> parts,
              const ParameterLayout& layout, const Config& config) {
    Buffer p(params.size(), dtype_);
    Buffer g(params.size(), dtype_);
    kernels::convert(params, p.view());
    kernels::convert(grads, g.view());
    const auto before = floats(p.view());
    expect_error(code, parts, [&] {
      const Engine engine(comm_, layout, config, p.view(), g.view());
    });
    EXPECT_EQ(floats(p.view()), before);
    EXPECT_EQ(floats(g.view()), grads);
  }

  std::vector<float> params;
  std::vector<float> grads;

 private:
  comm::Communicator& comm_;
  DType dtype_;
};

TEST(EngineErrors, MemoryMustFitTheLayoutAndTheConfiguration) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    const ParameterLayout layout = model_layout();
    const std::size_t n = layout.size();
    Buffer right(n, DType::kFloat32);
    Buffer few(n - 1, DType::kFloat32);
    Buffer many(n + 1, DType::kFloat32);
    Buffer half(n, DType::kFloat16);
    Buffer narrow(n - 3, DType::kBFloat16);
    Buffer wide(3, DType::kFloat32);
    Buffer brain(n, DType::kBFloat16);
    const Config own = config_of();
    const Config in_bf16 = config_of(DType::kBFloat16);
    const auto refused = [&](const Config& config, View params, View grads,
                             std::initializer_list<std::string_view> parts,
                             ConstView initial = {}) {
      expect_error(kArgument, parts, [&] {
        const Engine engine(comm, layout, config, params, grads, initial);
      });
    };
    refused(own, half.view(), half.view(),
            {"params must be float32", "got float16"});
    refused(config_of(DType::kFloat16), right.view(), right.view(),
            {"params must be float16", "got float32"});
    refused(own, few.view(), few.view(), {"params must be", "38360", "38359"});
    refused(own, right.view(), many.view(), {"grads must be", "38361"});
    refused(own, right.view(), right.view(),
            {"initial must be float32", "38361"}, many.view());
    refused(own, right.view(), right.view(),
            {"initial must be float32", "float16"}, half.view());
    refused(test::zero_config(2), right.view(), right.view(),
            {"grads must be empty", "gradient_ready", "got 38360 elements"});
    refused(test::zero_config(1), right.view(), View{},
            {"grads must be float32 of 38360", "of 0"});
    refused(in_bf16, View::joined(narrow.view(), wide.view()), brain.view(),
            {"grads must be float32 from element 38357 on"});
    refused(in_bf16, View::joined(wide.view(), narrow.view()), brain.view(),
            {"params must be bfloat16 of 38360 elements", "got float32"});
    // Overlapping and misaligned memory.
    std::vector<float> memory(2 * n);
    const View all = memory;
    const auto shifted = [&](std::size_t bytes) {
      return View(static_cast<std::byte*>(right.data()) + bytes, n,
                  DType::kFloat32);
    };
    for (const std::size_t at : {std::size_t{0}, n - 1})
      refused(own, all.subview(0, n), all.subview(at, n),
              {"params and grads must not overlap"});
    refused(in_bf16,
            View::joined(brain.view().subview(0, n - 3), all.subview(0, 3)),
            View::joined(View(half.data(), n - 3, DType::kBFloat16),
                         all.subview(2, 3)),
            {"params and grads must not overlap"});
    refused(own, shifted(1), all.subview(0, n),
            {"params must lie at a multiple of 4 bytes, got 0x"});
    refused(own, all.subview(0, n), shifted(2),
            {"grads must lie at a multiple"});
    refused(own, all.subview(0, n), all.subview(n, n),
            {"initial must lie at a multiple"}, shifted(3));
  });
}

TEST(EngineErrors, CheckpointsMustTakeNamesAndShapes) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    Refused(comm, DType::kFloat32, 4)
        .expect(kArgument, {"has a control character"},
                ParameterLayout::of({{"a\x1b[31mred", {4}}}), config_of());
    std::vector<std::size_t> many(17, 1);
    many[0] = 4;
    Refused(comm, DType::kFloat32, 4)
        .expect(kArgument, {"up to 16 dimensions, got 17"},
                ParameterLayout::of({{"w", many}}), config_of());
  });
}

TEST(EngineErrors, TheConfigurationMustBeValid) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const ParameterLayout layout = model_layout();
    Config config = config_of();
    config.gradient_clipping = -1;
    Refused(comm).expect(kArgument, {"gradient_clipping"}, layout, config);
    config = config_of();
    config.train_batch_size = 6;  // of 2 ranks, twice
    Refused(comm).expect(kArgument, {"train_batch_size"}, layout, config);
    config = config_of();
    config.zero.stage = 1;
    Refused(comm).expect(kArgument,
                         {"zero_optimization.stage) must be 0 with onebit_adam",
                          "thinwire.lean"},
                         layout, config);
    // Only the optimizer knows that the model has two groups.
    config = config_of();
    std::get<optim::OnebitAdamOptions>(config.optimizer).groups.resize(3);
    Refused(comm).expect(kArgument, {"groups"}, layout, config);
    const Sharded driven(comm, config_of());
  });
}

// Every rank gets the error, none waits, and they can go on together.
TEST(EngineErrors, RanksMustHaveTheSameConfigurationAndModel) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    comm::run_local_ranks(
        3,
        [&](comm::Communicator& comm) {
          const bool is_last = comm.rank() == comm.size() - 1;
          Config config = config_of(dtype);
          // What optimizers do not compare, because they do not know it.
          if (is_last) config.managed_gradient_accumulation = false;
          Refused(comm, dtype)
              .expect(kArgument, {"the same on all ranks", "managed"},
                      model_layout(), config);
          Refused(comm, dtype, 9)
              .expect(kArgument, {"the same on all ranks", "\"a ", "\"b "},
                      ParameterLayout::of(
                          {{"common", {7}, 0}, {is_last ? "b" : "a", {2}, 1}}),
                      config_of(dtype));
          Sharded driven(comm, config_of(dtype));
          driven.backward({1, 0});
          EXPECT_TRUE(driven.step({1, 1}).applied);
        },
        kPatient);
}

TEST(EngineErrors, RanksMayHaveDifferentThreadsAndPrograms) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Config config = config_of();
    config.comm.num_threads = 1 + comm.rank();
    if (comm.rank() != 0) config.other_objects["program"] = "{}";
    EXPECT_NO_THROW(Sharded(comm, config));
  });
}

// No loss scale suits these gradients; the next ones are fine.
TEST(EngineErrors, NonFiniteGradientsAtTheMinimumOfTheScale) {
  for (const char* optimizer : {"adam", "onebit_adam", "zero_one_adam"})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Config config = config_of(DType::kFloat16);
      config.optimizer = optimizer_case(optimizer);
      config.gradient_accumulation_steps = 1;
      config.precision.loss_scale = {
          .initial_scale = 1, .hysteresis = 1, .min_scale = 1};
      ByHand hand(comm, config, {.bucket_elements = 16384});
      Sharded driven(comm, config);
      for (std::int64_t t = 1; t <= 7; ++t) {
        driven.backward({.step = 50 + t, .overflows = comm.rank() == 1});
        expect_error(ErrorCode::kNonFinite,
                     {"minimum", "'long' on rank 1", "last good step was"},
                     [&] { driven.engine.step(); });
        EXPECT_TRUE(is_zero(driven.grads.view()));
        hand.step(t, 1, 1, false);
        EXPECT_EQ(driven.step({.step = t}).steps, t);
        ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view()))
            << optimizer << ", step " << t;
      }
    });
}

// From then on its memory is the caller's, though a rank may be late.
TEST(EngineErrors, EndsPendingExchangesBeforeItIsDestroyed) {
  for (const bool is_converted : {false, true})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Config config{.optimizer = optimizer_case("adam")};
      config.comm.bucket_elements = 16384;
      if (is_converted) config.communication_dtype = DType::kBFloat16;
      const std::vector<float> sevens(model_layout().size(), 7.0f);
      auto driven = std::make_unique<Sharded>(comm, config);
      if (comm.rank() == 1)
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      driven->backward({.step = 1});
      Buffer grads = std::move(driven->grads);
      driven.reset();
      kernels::convert(sevens, grads.view());
      comm.barrier();
      EXPECT_EQ(floats(grads.view()), sevens);
      Sharded another(comm, config);
      EXPECT_TRUE(another.step({.step = 1}).applied);
    });
}

}  // namespace
}  // namespace thinwire::engine::test::engine_errors_test
