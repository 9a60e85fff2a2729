// SPDX-License-Identifier: Apache-2.0
// What loops do with a module besides training it: new engines, failures,
// buffers, checkpoints.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/folder.h"
#include "thinwire/core/log.h"
#include "thinwire/torch/engine.h"
#include "thinwire/torch/random_state.h"
#include "torch/net.h"

namespace thinwire::torch::engine_use_test {
namespace {

using test::expect_error;
using test::expect_invalid;

config::Config zero(int stage, DType dtype = DType::kFloat32) {
  config::Config config = config_of(dtype);
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 5000;
  return config;
}

TEST(TorchEngineReplaced, TheNewEngineTrainsAsTheFirstDid) {
  for (const int world : {1, 2, 3})
    for (const int stage : {0, 1, 2})
      for (const DType dtype : {DType::kFloat32, DType::kFloat16})
        run(world, [&](comm::Communicator& comm) {
          Net net;
          Net fresh;
          // In 16 bits the second engine takes what the first has rounded.
          for (Net* one : {&net, &fresh}) {
            const ::torch::NoGradGuard no_grad;
            for (at::Tensor& p : one->parameters())
              p.copy_(p.to(at::kHalf).to(at::kFloat));
          }
          auto engine = std::make_unique<Engine>(net, comm, zero(stage, dtype));
          engine = std::make_unique<Engine>(net, comm, zero(stage, dtype));
          Engine want(fresh, comm, zero(stage, dtype));
          for (int t = 1; t <= 2; ++t) {
            const auto report = step(*engine, net, comm.rank(), t);
            EXPECT_EQ(report.late_elements, 0u);  // hooks have fired
            step(want, fresh, comm.rank(), t);
            ASSERT_EQ(floats(engine->params()), floats(want.params()));
          }
          loss_of(net, comm, 9).backward();
          expect_error(ErrorCode::kFailedPrecondition,
                       {"engine.backward(loss)"}, [&] { engine->step(); });
        });
}

TEST(TorchEngineReplaced, NoHookIsLeftBehind) {
  run(1, [](comm::Communicator& comm) {
    Net net;
    int calls = 0;
    const auto count = [&](const at::Tensor&) { ++calls; };
    { Engine engine(net, comm, config_of()); }
    {
      Engine first(net, comm, config_of());
      net.first->weight.register_hook(count);
      Engine second(net, comm, config_of());
    }
    for (const at::Tensor& parameter : net.parameters())
      EXPECT_EQ(::torch::autograd::impl::post_acc_grad_hooks(parameter),
                nullptr);
    net.zero_grad();
    loss_of(net, comm, 1).backward();
    EXPECT_EQ(calls, 1);  // the user's own is still there
  });
}

// ---- causes

TEST(TorchEngineCause, ArrivesOnEveryRank) {
  for (const int world : {1, 2, 3})
    for (const int stage : {0, 1, 2})
      for (const bool late : {false, true}) {
        std::vector<std::string> texts(static_cast<std::size_t>(world));
        std::vector<int> nested(texts.size());
        const auto body = [&](comm::Communicator& comm) {
          Net net;
          Engine engine(net, comm, zero(stage));
          const auto rank = static_cast<std::size_t>(comm.rank());
          const at::Tensor weight = late ? net.first->weight : net.last->weight;
          try {
            for (int t = 1; t <= 3; ++t) {
              if (t == 2 && comm.rank() == 0)
                weight.register_hook([](const at::Tensor&) {
                  throw std::out_of_range("my own cause");
                });
              step(engine, net, comm.rank(), t);
            }
          } catch (const std::out_of_range& cause) {
            texts[rank] = cause.what();
            nested[rank] = 1;
            throw;
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kCommFailure);
            texts[rank] = error.what();
            try {
              std::rethrow_if_nested(error);
            } catch (const std::out_of_range&) {
              nested[rank] = 1;
            }
            throw;
          }
        };
        EXPECT_THROW(run(world, body), std::exception);
        EXPECT_EQ(nested[0], 1) << texts[0];
        for (std::size_t r = 0; r < texts.size(); ++r) {
          EXPECT_NE(texts[r].find("my own cause"), std::string::npos)
              << texts[r];
          if (r > 0) {
            EXPECT_NE(texts[r].find("gave up: "), std::string::npos);
          }
        }
      }
}

TEST(TorchEngineMean, TakesNumbersAndTensorsOfOneElement) {
  run(3, [](comm::Communicator& comm) {
    Net net;
    Engine engine(net, comm, config_of());
    const double own = comm.rank() + 0.25;
    EXPECT_EQ(engine.mean(own), 1.25);
    EXPECT_EQ(engine.mean(at::full({1, 1}, own, at::kFloat)), 1.25);
    EXPECT_EQ(engine.mean(at::tensor(std::int64_t{comm.rank()})), 1);
    EXPECT_TRUE(std::isnan(engine.mean(comm.rank() == 2 ? NAN : 1.0)));
    expect_invalid({"one element", "got 2"},
                   [&] { (void)engine.mean(at::ones({2})); });
    engine.set_learning_rate(0, 0.5);
    EXPECT_EQ(step(engine, net, comm.rank(), 1).learning_rate, 0.5);
    engine.set_schedule(
        [](double base, std::int64_t n) { return base + double(n); });
    EXPECT_EQ(step(engine, net, comm.rank(), 2).learning_rate, 1.01);
  });
}

// ---- buffers

struct Normed : nn::Module {
  explicit Normed(int rank) {
    linear = register_module("linear", nn::Linear(6, 8));
    norm = register_module("norm", nn::BatchNorm1d(8));
    plain = register_module(
        "plain",
        nn::BatchNorm1d(nn::BatchNorm1dOptions(8).track_running_stats(false)));
    last = register_module("last", nn::Linear(8, 1));
    norm->running_mean.fill_(rank);
    norm->num_batches_tracked.fill_(7 + rank);
    empty = register_buffer("empty", at::ones({0, 3}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm->forward(linear->forward(x));
    return last->forward(plain->forward(at::relu(y)));
  }
  nn::Linear linear = nullptr, last = nullptr;
  nn::BatchNorm1d norm = nullptr, plain = nullptr;
  at::Tensor empty;
};

at::Tensor loss_of(Normed& net, int rank, int t) {
  const at::Tensor x =
      at::sin(at::arange(48, at::kFloat) * (0.7 * t + 0.3 * rank)).view({8, 6});
  return net.forward(x.to(net.linear->weight.scalar_type()))
      .to(at::kFloat)
      .square()
      .mean();
}

TEST(TorchEngineBuffers, AreMadeEqualAsTheOptionSays) {
  using config::Buffers;
  for (const int world : {1, 2, 3})
    for (const Buffers how :
         {Buffers::kBroadcast, Buffers::kAverage, Buffers::kAsTheyAre})
      for (const bool by_file : {false, true}) {
        std::vector<at::Tensor> means(static_cast<std::size_t>(world));
        run(world, [&](comm::Communicator& comm) {
          const auto rank = static_cast<std::size_t>(comm.rank());
          Normed net(comm.rank());
          config::Config config = config_of();
          if (by_file) config.buffers = how;
          EngineOptions options;
          if (!by_file) options.buffers = how;
          Engine engine(net, comm, config, options);
          const bool stays = how == Buffers::kAsTheyAre;
          const double want = stays                        ? comm.rank()
                              : how == Buffers::kBroadcast ? 0
                                                           : (world - 1) / 2.0;
          EXPECT_EQ(net.norm->running_mean[3].item<double>(), want);
          EXPECT_EQ(net.norm->num_batches_tracked.item<int>(),
                    stays ? 7 + comm.rank() : 7);
          for (int t = 1; t <= 3; ++t) {
            step(engine, net, comm.rank(), t);
          }
          means[rank] = net.norm->running_mean.clone();
          comm.barrier();
          if (world > 1) {
            EXPECT_FALSE(means[0].equal(means[1]));
          }
          at::Tensor all = at::zeros({8}, at::kDouble);
          for (const at::Tensor& mean : means) all += mean.to(at::kDouble);
          const at::Tensor average = (all * (1.0 / world)).to(at::kFloat);
          const auto evaluation = engine.evaluation();
          EXPECT_TRUE(net.norm->running_mean.equal(stays ? means[rank]
                                                   : how == Buffers::kBroadcast
                                                       ? means[0]
                                                       : average));
          comm.barrier();
        });
      }
}

TEST(TorchEngineBuffers, BecomeSixteenBitWithTheParameters) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16})
    for (const int stage : {0, 2})
      run(2, [&](comm::Communicator& comm) {
        Normed net(comm.rank());
        config::Config config = zero(stage, dtype);
        Engine engine(net, comm, config);
        EXPECT_EQ(net.norm->running_var.scalar_type(),
                  net.linear->weight.scalar_type());
        EXPECT_EQ(net.norm->num_batches_tracked.scalar_type(), at::kLong);
        // Skipped if the loss scale has to fall.
        step(engine, net, comm.rank(), 1);
        const auto evaluation = engine.evaluation();
        net.eval();
        EXPECT_TRUE(std::isfinite(loss_of(net, comm.rank(), 1).item<double>()));
      });
}

TEST(TorchEngineBuffers, KeepTheirTypesIfAnyParameterIs16Bit) {
  for (const bool is_trained : {true, false})
    run(1, [&](comm::Communicator& comm) {
      Normed net(0);
      if (!is_trained) net.last->weight.set_requires_grad(false);
      net.last->weight.set_data(net.last->weight.detach().to(at::kBFloat16));
      if (is_trained)
        for (at::Tensor& p : net.parameters())
          p.set_data(p.detach().to(at::kBFloat16));
      const Engine engine(net, comm, config_of(DType::kBFloat16));
      EXPECT_EQ(net.linear->weight.scalar_type(), at::kBFloat16);
      EXPECT_EQ(net.norm->running_var.scalar_type(), at::kFloat);
    });
}

TEST(TorchEngineBuffers, ThatDifferInShapeAreRefusedOnAllRanks) {
  run(2, [](comm::Communicator& comm) {
    Normed net(0);
    net.register_buffer("more", at::ones({2 + comm.rank()}));
    const void* const place = net.linear->weight.const_data_ptr();
    expect_invalid({"the same on all ranks", "more Float [2]", "[3]"},
                   [&] { const Engine engine(net, comm, config_of()); });
    EXPECT_EQ(net.linear->weight.const_data_ptr(), place);
  });
}

// ---- checkpoints

// Net with what is not trained: ranks begin with other values.
struct NetWithOthers : Net {
  explicit NetWithOthers(double shift) : Net(shift) {
    frozen = register_parameter("frozen", at::full({2, 3}, 10 + shift),
                                /*requires_grad=*/false);
    mask = register_buffer("mask", at::full({5}, shift > 0, at::kBool));
    count = register_buffer("count", at::full({}, 7 + shift, at::kLong));
    turned = register_buffer(
        "turned", at::full({3, 2}, 20 + shift, at::kDouble).transpose(0, 1));
    mask_again = register_buffer("mask_again", mask);
    small = register_buffer("small", at::full({2}, 1, at::kComplexDouble));
    register_buffer("small_again", small);
    bits = register_buffer("bits", at::full({4}, -300 + shift, at::kShort));
  }
  void change() {
    const ::torch::NoGradGuard no_grad;
    frozen.fill_(-1);
    mask.logical_not_();
    count.fill_(-1);
    turned.fill_(-1);
    small.fill_(-1);
    bits.fill_(-1);
  }
  at::Tensor frozen, mask, count, turned, mask_again, small, bits;
};

config::Config as_they_are() {
  config::Config config = config_of();
  config.buffers = config::Buffers::kAsTheyAre;
  return config;
}

TEST(ModuleOthers, AreFrozenParametersAndBuffersUnderTheirFirstNames) {
  std::vector<std::string> lines;
  set_log_sink(
      [&](LogLevel, std::string_view text) { lines.emplace_back(text); });
  const NetWithOthers net(0);
  ModuleOthers module(net);
  const auto others = module.describe();
  set_log_sink({});
  std::vector<std::string> names;
  for (const auto& its : others.tensors) names.push_back(its.name);
  EXPECT_EQ(names, (std::vector<std::string>{"frozen", "mask", "count",
                                             "turned", "bits"}));
  EXPECT_EQ(others.tensors[0].shape, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(others.tensors[0].values.dtype(), DType::kFloat32);
  EXPECT_EQ(others.tensors[1].type, "BOOL");
  EXPECT_EQ(others.tensors[1].values.dtype(), DType::kUInt8);
  EXPECT_TRUE(others.tensors[2].shape.empty());
  EXPECT_EQ(others.tensors[2].values.as<std::int64_t>()[0], 7);
  EXPECT_EQ(others.tensors[3].values.dtype(), DType::kFloat64);
  EXPECT_EQ(others.tensors[4].type, "I16");
  using Names = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(others.aliases, (Names{{"tied_again.weight", "tied.weight"},
                                   {"tied_again.bias", "tied.bias"},
                                   {"mask_again", "mask"}}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("'small'"), std::string::npos) << lines[0];
}

TEST(TorchCheckpoint, HasAllThatTheModuleHas) {
  for (const int world : {1, 2}) {
    const test::Folder folder;
    run(world, [&](comm::Communicator& comm) {
      NetWithOthers net(comm.rank());
      Engine engine(net, comm, as_they_are());
      const auto step = [&](int t) {
        engine.backward(loss_of(net, comm, t));
        engine.step();
      };
      step(1);
      checkpoint::Extra extra;
      if (comm.size() == 1) extra.own.put("random", random_state());
      const std::string path =
          engine.save(folder.path(), extra, {.durable = false}).path;
      const auto saved = floats(engine.params());
      const at::Tensor drawn = at::rand({3});
      step(2);
      const auto later = floats(engine.params());

      net.change();
      const checkpoint::LoadReport report = engine.load(path);
      EXPECT_EQ(report.step, 1);
      EXPECT_EQ(floats(engine.params()), saved);
      // Rank 0's, on all of them.
      EXPECT_TRUE(net.frozen.eq(10).all().item<bool>());
      EXPECT_FALSE(net.mask.any().item<bool>());
      EXPECT_EQ(net.count.item<std::int64_t>(), 7);
      EXPECT_TRUE(net.turned.eq(20).all().item<bool>());
      EXPECT_FALSE(net.turned.is_contiguous());
      EXPECT_TRUE(net.small.eq(-1).all().item<bool>()) << "not saved";
      if (comm.size() == 1) {
        set_random_state(report.extra.own.array("random"));
        EXPECT_TRUE(at::rand({3}).equal(drawn));
      }
      step(2);
      EXPECT_EQ(floats(engine.params()), later);
    });
  }
}

TEST(RandomState, OfAnotherKindIsRefused) {
  const at::Tensor before = at::rand({1});
  static_cast<void>(before);
  const Buffer state = random_state();
  Buffer floats_of_it(state.size(), DType::kFloat32);
  for (const ConstView wrong : {state.view().subview(0, state.size() - 1),
                                ConstView(floats_of_it.view())})
    expect_error(
        ErrorCode::kCorruptCheckpoint,
        {"the random state must be uint8 of", std::to_string(wrong.size())},
        [&] { set_random_state(wrong); });
  const at::Tensor drawn = at::rand({4});
  set_random_state(state.view());
  EXPECT_TRUE(at::rand({4}).equal(drawn));
}

}  // namespace
}  // namespace thinwire::torch::engine_use_test
