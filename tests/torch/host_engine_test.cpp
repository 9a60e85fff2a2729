// SPDX-License-Identifier: Apache-2.0
// One leader per host: on the test device and its process group, ranks of two
// hosts have the bits of one rank per host on the CPU.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "device/group.h"
#include "support/errors.h"
#include "support/folder.h"
#include "thinwire/torch/host_engine.h"
#include "torch/device.h"
#include "torch/net.h"

namespace thinwire::torch::host_engine_test {
namespace {

using test::expect_error;
using test::expect_invalid;
using Values = std::vector<float>;

constexpr int kHosts = 2, kPerHost = 2;
constexpr int kWorld = kHosts * kPerHost;

// The process groups of hosts, for ranks that are threads.
class Groups {
 public:
  c10::intrusive_ptr<fence::Ccl> of(int rank, int size = kPerHost) {
    const int host = rank / kPerHost;
    return c10::make_intrusive<fence::Ccl>(
        c10::make_intrusive<c10d::PrefixStore>("host " + std::to_string(host),
                                               store_),
        rank % kPerHost, size, std::chrono::milliseconds(20000));
  }

 private:
  c10::intrusive_ptr<c10d::HashStore> store_ =
      c10::make_intrusive<c10d::HashStore>();
};

std::int64_t window_of(const Case& which) {
  return which.config.gradient_accumulation_steps.value_or(1);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    auto common = common_cases(dtype);
    common.front().bucket_bytes = std::size_t{25} << 20;
    all.insert(all.end(), common.begin(), common.end());
  }
  constexpr DType kNarrow = DType::kBFloat16;
  all.push_back(case_of("Adam, windows of 3 in 16 bits", kNarrow, kAdam, 0, 3));
  all.back().config.accumulation_dtype = kNarrow;
  const optim::OnebitAdamOptions onebit{.learning_rate = 0.01,
                                        .freeze = {.step = 4}};
  all.push_back(case_of("1-bit Adam, windows of 2", kNarrow, onebit, 0, 2));
  return all;
}

at::Tensor loss_in(Net& net, int rank, int step, std::int64_t micro) {
  net.uses_side = (step + micro) % 3 != 0 || rank == 0;
  const at::Tensor loss =
      loss_of(net, rank, 10 * step + static_cast<int>(micro));
  const bool is_infinite =
      step == 5 && rank == 1 && net.last->weight.scalar_type() == at::kHalf;
  return is_infinite ? loss * std::numeric_limits<float>::infinity() : loss;
}

HostEngine make(Net& net, comm::Communicator& comm, Groups& groups,
                const Case& which) {
  config::Config config = which.config;
  config.comm.ranks_per_host = kPerHost;
  return HostEngine(net, comm, groups.of(comm.rank()), config,
                    {.bucket_bytes = which.bucket_bytes});
}

constexpr int kSteps = 12;

// Losses of this rank, and parameters.
Values led(comm::Communicator& comm, Groups& groups, const Case& which) {
  Net net(comm.rank());
  net.to(device_of(comm.rank()));
  HostEngine engine = make(net, comm, groups, which);
  Values all;
  std::int64_t skipped = 0;
  for (int t = 0; t < kSteps; ++t)
    for (std::int64_t micro = 0; micro < window_of(which); ++micro) {
      const at::Tensor loss = loss_in(net, comm.rank(), t, micro);
      engine.backward(loss);
      const engine::EngineReport report = engine.step();
      if (report.at_boundary && !report.applied) ++skipped;
      EXPECT_TRUE(report.at_boundary || !report.applied);
      if (!report.at_boundary) {
        const auto phase = static_cast<double>(report.phase);
        EXPECT_EQ(engine.mean(phase), phase);
        if (const engine::Engine* leader = engine.leader()) {
          EXPECT_EQ(report.phase, leader->optimizer().progress().phase);
        }
      }
      EXPECT_EQ(report.at_boundary, micro + 1 == window_of(which));
      EXPECT_EQ(report.steps, engine.steps());
      all.push_back(loss.item<float>());
    }
  EXPECT_EQ(engine.steps() + skipped, kSteps) << which.name;
  EXPECT_EQ(engine.leader() != nullptr, comm.rank() % kPerHost == 0);
  return losses_and(all, net);
}

// A loss whose gradients are the means of all others', added in their order in
// each window, and then in the order of windows.
at::Tensor with_gradients_of(
    Net& net, const std::vector<std::vector<at::Tensor>>& windows,
    double factor, at::ScalarType type) {
  std::vector<at::Tensor> parameters;
  for (const NamedParameter& parameter : trainable_parameters(net))
    parameters.push_back(parameter.tensor);
  const auto count =
      static_cast<double>(windows.size() * windows.front().size());
  const auto add = [](std::vector<at::Tensor>& sums,
                      const std::vector<at::Tensor>& more) {
    for (std::size_t k = 0; k < sums.size(); ++k)
      if (more[k].defined())
        sums[k] = sums[k].defined() ? sums[k] + more[k] : more[k];
  };
  std::vector<at::Tensor> sums(parameters.size());
  for (const auto& window : windows) {
    std::vector<at::Tensor> of_window(parameters.size());
    for (const at::Tensor& loss : window) {
      auto found = ::torch::autograd::grad({loss * (factor / count)},
                                           parameters, {}, true, false, true);
      for (at::Tensor& gradient : found)
        if (gradient.defined()) gradient = gradient.to(type);
      add(of_window, found);
    }
    add(sums, of_window);
  }
  at::Tensor loss = at::zeros({});
  for (std::size_t k = 0; k < sums.size(); ++k)
    if (sums[k].defined())
      loss = loss +
             (parameters[k].to(at::kFloat) * (sums[k].to(at::kFloat) / factor))
                 .sum();
  return loss;
}

// The same of one rank per host, for each rank of the host.
std::vector<Values> flat(comm::Communicator& comm, const Case& which) {
  Net net(comm.rank() * kPerHost);
  config::Config config = which.config;
  // ZeRO-2 averages after every backward, and 16-bit sums of a host are
  // rounded.
  const bool is_joined = config.zero.stage == 2 || window_of(which) > 1 ||
                         config.precision.dtype != DType::kFloat32;
  config.gradient_accumulation_steps = is_joined ? 1 : kPerHost;
  const at::ScalarType type =
      config.accumulation_dtype == DType::kFloat32
          ? at::kFloat
          : ModuleMemory::scalar_type(config.accumulation_dtype);
  Engine engine(net, comm, config);
  std::vector<Values> all(kPerHost);
  for (int t = 0; t < kSteps; ++t) {
    std::vector<std::vector<at::Tensor>> windows(kPerHost);
    for (int local = 0; local < kPerHost; ++local)
      for (std::int64_t micro = 0; micro < window_of(which); ++micro) {
        const auto at = static_cast<std::size_t>(local);
        windows[at].push_back(
            loss_in(net, comm.rank() * kPerHost + local, t, micro));
        all[at].push_back(windows[at].back().item<float>());
      }
    if (is_joined)
      windows = {
          {with_gradients_of(net, windows, engine.core().loss_factor(), type)}};
    for (const auto& window : windows) {
      engine.backward(window.front());
      engine.step();
    }
  }
  for (Values& of_rank : all) of_rank = losses_and(of_rank, net);
  return all;
}

TEST(TorchHostEngine, HasTheBitsOfOneRankPerHost) {
  for (const Case& which : cases()) {
    std::vector<Values> want(kWorld);
    run(kHosts, [&](comm::Communicator& comm) {
      auto of_host = flat(comm, which);
      for (int local = 0; local < kPerHost; ++local)
        want[static_cast<std::size_t>(comm.rank() * kPerHost + local)] =
            std::move(of_host[static_cast<std::size_t>(local)]);
    });
    Groups groups;
    run(kWorld, [&](comm::Communicator& comm) {
      EXPECT_EQ(led(comm, groups, which),
                want[static_cast<std::size_t>(comm.rank())])
          << which.name << " on rank " << comm.rank();
    });
  }
}

// ---- checkpoints and evaluations

TEST(TorchHostEngine, RunContinuesFromACheckpoint) {
  const test::Folder folder;
  const std::string root = folder.in("led");
  const Case which{"1-bit Adam bf16", config_of(DType::kBFloat16)};
  const auto train = [](HostEngine& engine, Net& net, int rank, int from,
                        int to) {
    for (int t = from; t < to; ++t) step(engine, net, rank, t);
  };
  Values saved;
  Groups groups;
  run(kWorld, [&](comm::Communicator& comm) {
    Net net(comm.rank());
    net.to(device_of(comm.rank()));
    HostEngine engine = make(net, comm, groups, which);
    EXPECT_EQ(engine.resume(root), std::nullopt);
    train(engine, net, comm.rank(), 0, 4);
    checkpoint::Extra extra;
    extra.common.put_text("text", "common");
    extra.own.put_integer("rank", comm.rank());
    extra.own.put("values", std::vector<float>(3, 0.5F));
    const auto report = engine.save(root, extra, {.durable = false});
    EXPECT_EQ(report.step, 4);
    if (comm.rank() == 0) saved = values_of(net);
    train(engine, net, comm.rank(), 4, 7);
    const Values end = values_of(net);

    Net again(7 + comm.rank());
    again.to(device_of(comm.rank()));
    HostEngine other = make(again, comm, groups, which);
    const auto loaded = other.load(root);
    EXPECT_EQ(other.steps(), 4);
    EXPECT_EQ(loaded.step, 4);
    EXPECT_EQ(loaded.world, kHosts);
    EXPECT_EQ(loaded.extra.common.text("text"), "common");
    EXPECT_EQ(loaded.extra.own.integer("rank"), comm.rank());
    EXPECT_EQ(loaded.extra.own.array("values").as<float>()[2], 0.5F);
    ASSERT_EQ(loaded.own_of_ranks.size(), 4U);
    EXPECT_EQ(loaded.own_of_ranks[3].integer("rank"), 3);
    train(other, again, comm.rank(), 4, 7);
    EXPECT_EQ(values_of(again), end) << comm.rank();
  });
  // Without leaders, on the CPU.
  run(1, [&](comm::Communicator& comm) {
    Net net(3);
    Engine engine(net, comm, which.config);
    const auto loaded = engine.load(root);
    EXPECT_EQ(loaded.extra.own.integer("rank"), 0);
    ASSERT_EQ(loaded.own_of_ranks.size(), 4U);
    EXPECT_EQ(loaded.own_of_ranks[1].integer("rank"), 1);
    EXPECT_EQ(loaded.extra.own.scalars().size(), 1U);
    EXPECT_EQ(values_of(net), saved);
  });
  // Leaders load what ranks without leaders have saved.
  const std::string plain = folder.in("plain");
  run(kWorld, [&](comm::Communicator& comm) {
    Net net(comm.rank());
    net.to(device_of(comm.rank()));
    {
      Engine engine(net, comm, which.config);
      checkpoint::Extra extra;
      extra.own.put_integer("rank", comm.rank());
      engine.save(plain, extra, {.durable = false});
    }
    HostEngine engine = make(net, comm, groups, which);
    EXPECT_EQ(engine.load(plain).extra.own.integer("rank"), comm.rank());
  });
}

// 0/1 Adam's ranks differ between syncs, and buffers always do.
TEST(TorchHostEngine, AnEvaluationMakesRanksEqual) {
  struct WithBuffer : Net {
    explicit WithBuffer(int rank) : Net(rank) {
      seen = register_buffer("seen", at::full({3}, rank + 1.0));
    }
    at::Tensor seen;
  };
  const Case which{"0/1 Adam",
                   {.optimizer = optim::ZeroOneAdamOptions{
                        .learning_rate = 0.01, .var_freeze_step = 2}}};
  Groups groups;
  std::vector<Values> all(kWorld);
  run(kWorld, [&](comm::Communicator& comm) {
    WithBuffer net(comm.rank());
    net.to(device_of(comm.rank()));
    HostEngine engine = make(net, comm, groups, which);
    for (int t = 0; t < 7; ++t) step(engine, net, comm.rank(), t);
    net.seen.fill_(comm.rank());
    EXPECT_EQ(engine.mean(comm.rank()), 1.5);
    {
      const auto evaluation = engine.evaluation();
      all[static_cast<std::size_t>(comm.rank())] = values_of(net);
      EXPECT_EQ(net.seen.to(at::kCPU).sum().item<float>(), 0);
      EXPECT_FALSE(loss_of(net, 0, 0).requires_grad());
      expect_error(ErrorCode::kFailedPrecondition, {"inside an evaluation"},
                   [&] { engine.save("/nowhere"); });
    }
    step(engine, net, comm.rank(), 8);
    EXPECT_EQ(engine.steps(), 8);
  });
  for (const Values& of_rank : all) EXPECT_EQ(of_rank, all[0]);
}

// ---- what is refused, on all ranks

TEST(TorchHostEngine, AllRanksRefuseWhatDoesNotFit) {
  const auto refused = [](std::initializer_list<std::string_view> parts,
                          const std::function<void(int, Case&, int&)>& change) {
    Groups groups;
    run(kWorld, [&](comm::Communicator& comm) {
      Net net(comm.rank());
      net.to(device_of(comm.rank()));
      Case which{"", config_of()};
      which.config.comm.ranks_per_host = kPerHost;
      int size = kPerHost;
      change(comm.rank(), which, size);
      expect_invalid(parts, [&] {
        HostEngine(net, comm, groups.of(comm.rank(), size), which.config,
                   {.bucket_bytes = which.bucket_bytes});
      });
    });
  };
  refused({"group must be rank", "of 2, as on this host"},
          [](int, Case&, int& size) { size = 3; });
  refused({"all 4 ranks are on one host"},
          [](int, Case& which, int&) { which.config.comm.ranks_per_host = 0; });
  refused({"on rank 3"}, [](int rank, Case& which, int&) {
    if (rank == 3) which.config.gradient_clipping = 0.5;
  });
  refused({"HostEngine: comm.hierarchy must be auto"},
          [](int rank, Case& which, int&) {
            if (rank == 1)
              which.config.comm.hierarchy = config::Hierarchy::kFlat;
          });
  refused({"\"bucket_bytes 1\" on rank 2"}, [](int rank, Case& which, int&) {
    which.bucket_bytes = rank == 2 ? 1 : 2048;
  });
  refused({"managed_gradient_accumulation must be true"},
          [](int, Case& which, int&) {
            which.config.managed_gradient_accumulation = false;
          });
  Groups groups;
  run(kWorld, [&](comm::Communicator& comm) {
    Net net;
    config::Config config = config_of();
    config.comm.ranks_per_host = kPerHost;
    expect_invalid({"on a device", "on the CPU"}, [&] {
      HostEngine(net, comm, groups.of(comm.rank()), config);
    });
  });
}

TEST(TorchHostEngine, NamesWhatDoesNotFitTheMoment) {
  Groups groups;
  run(kWorld, [&](comm::Communicator& comm) {
    Net net(comm.rank());
    net.to(device_of(comm.rank()));
    HostEngine engine =
        make(net, comm, groups, {"", config_of(DType::kFloat32, 2)});
    const auto refused = [&](const char* text, const auto& call) {
      expect_error(ErrorCode::kFailedPrecondition, {text}, call);
    };
    refused("no backward since the last step", [&] { engine.step(); });
    expect_invalid({"learning_rate", "got nan"},
                   [&] { engine.set_learning_rate(std::nan("")); });
    engine.backward(loss_of(net, comm.rank(), 0));
    refused("inside a window", [&] { engine.save("/nowhere"); });
    net.zero_grad();
    refused("is gone or was replaced",
            [&] { engine.backward(loss_of(net, comm.rank(), 1)); });
    loss_of(net, comm.rank(), 0).backward();
    refused("not the engine's", [&] { engine.step(); });
  });
}

// ---- ranks that fail

// Returns each rank's error.
std::vector<std::string> errors_of(
    const std::function<void(comm::Communicator&, HostEngine&, fence::Ccl&,
                             Net&)>& body,
    std::chrono::seconds timeout = std::chrono::seconds(5)) {
  std::vector<std::string> errors(kWorld);
  Groups groups;
  const comm::CommunicatorOptions options{.timeout = timeout};
  comm::run_local_ranks(
      kWorld,
      [&](comm::Communicator& comm) {
        at::set_num_threads(1);
        Net net(comm.rank());
        net.to(device_of(comm.rank()));
        config::Config config = config_of();
        config.comm.ranks_per_host = kPerHost;
        const auto group = groups.of(comm.rank());
        HostEngine engine(net, comm, group, config, {.bucket_bytes = 2048});
        try {
          body(comm, engine, *group, net);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kCommFailure);
          errors[static_cast<std::size_t>(comm.rank())] = error.what();
        }
      },
      options);
  // A group that has failed leaves its operations behind.
  fence::accesses.clear();
  fence::fault.clear();
  return errors;
}

TEST(TorchHostEngine, AllRanksNameAFollowerWhoseBackwardFails) {
  const auto errors = errors_of(
      [](comm::Communicator& comm, HostEngine& engine, fence::Ccl&, Net& net) {
        const at::Tensor x = input(device_of(comm.rank()), comm.rank(), 0);
        at::Tensor y = at::tanh(net.first->forward(x));
        if (comm.rank() == 3) y = Breaks::apply(y);  // after other gradients
        y = net.last->forward(net.tied->forward(net.second->forward(y)));
        engine.backward(net.side->forward(y).square().mean());
        engine.step();
      });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("breaks"), std::string::npos) << error;
  for (const std::size_t rank : {0U, 1U, 2U})
    EXPECT_NE(errors[rank].find("rank 3 gave up"), std::string::npos)
        << errors[rank];
}

TEST(TorchHostEngine, AllRanksLearnThatTheGroupHasFailed) {
  const auto errors = errors_of([](comm::Communicator& comm, HostEngine& engine,
                                   fence::Ccl& group, Net& net) {
    for (int t = 0; t < 3; ++t) {
      if (t == 1 && comm.rank() == 2) group.abort();
      step(engine, net, comm.rank(), t);
    }
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("a sum of the ranks of rank 2's host over fence_ccl: "
                         "fence_ccl: aborted"),
              std::string::npos)
        << error;
}

TEST(TorchHostEngine, AllRanksLearnOfOneThatHangs) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = errors_of(
      [&](comm::Communicator& comm, HostEngine& engine, fence::Ccl&, Net& net) {
        for (int t = 0; t < 2; ++t) {
          if (t == 1 && comm.rank() == 3)
            std::this_thread::sleep_for(std::chrono::seconds(5));
          step(engine, net, comm.rank(), t);
        }
      },
      std::chrono::seconds(2));
  for (const std::size_t rank : {0U, 1U, 2U})
    EXPECT_NE(errors[rank].find("waiting for rank 3"), std::string::npos)
        << errors[rank];
  EXPECT_NE(errors[3], "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(7));
}

}  // namespace
}  // namespace thinwire::torch::host_engine_test
