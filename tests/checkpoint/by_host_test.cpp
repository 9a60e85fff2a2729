// SPDX-License-Identifier: Apache-2.0
// Residuals of 1-bit Adam by host: bit-equal on the same hosts; on others, what
// workers owe in the mean is kept, and what servers owe by element.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "support/folder.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/comm/local.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::checkpoint::by_host_test {
namespace {

using test::Folder;

ParameterLayout layout() {
  return ParameterLayout::of(
      {{"one", {1}}, {"none", {0}}, {"b1025", {1025}}, {"last", {9097}}});
}

struct Ranks {
  int world;
  int per_host;
};

// The residuals by element: the workers' mean, and the servers'.
struct Owed {
  std::vector<double> workers = std::vector<double>(layout().size());
  std::vector<double> servers = std::vector<double>(layout().size());
};

void add(const optim::State& state, const char* name, double part,
         std::vector<double>& to) {
  const optim::StateArray* const array = state.find(name);
  ASSERT_NE(array, nullptr);
  std::vector<float> values(array->size);
  array->read({0, array->size}, View(std::span(values)));
  std::size_t at = 0;
  for (const Range& range : array->ranges)
    for (std::size_t i = range.offset; i < range.end(); ++i)
      to[i] += part * values[at++];
}

// One rank's training on its communicator by host.
struct Trained {
  Trained(comm::Communicator& flat, Ranks ranks, std::size_t bucket)
      : comm(flat.by_host(
            comm::find_hosts(flat, {.ranks_per_host = ranks.per_host}))),
        workers(ranks.world / ranks.per_host),
        params(own_layout.size(), 1.0f),
        optimizer(*comm, own_layout, options(bucket)),
        training{.comm = *comm,
                 .layout = own_layout,
                 .params = params,
                 .optimizer = optimizer} {}

  static optim::OnebitAdamOptions options(std::size_t bucket) {
    optim::OnebitAdamOptions o{.learning_rate = 0.01, .freeze = {.step = 2}};
    o.compression.exchange.bucket_elements = bucket;
    return o;
  }
  void step() {
    ++training.step;
    std::vector<float> grads(params.size());
    for (std::size_t i = 0; i < grads.size(); ++i)
      grads[i] =
          static_cast<float>(
              (i * 2654435761u ^ static_cast<unsigned>(training.step * 40503 +
                                                       comm->rank() * 9176)) %
              2001) /
              1000.0f -
          1.0f;
    optimizer.step(params, grads);
  }
  void owe(Owed& to) const {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const optim::State state = optimizer.state();
    add(state, "worker_error", 1.0 / workers, to.workers);
    add(state, "server_error", 1, to.servers);
  }

  const ParameterLayout own_layout = layout();
  std::unique_ptr<comm::Communicator> comm;
  int workers;
  std::vector<float> params;
  optim::OnebitAdam optimizer;
  Training training;
};

Owed save_after_steps(Ranks ranks, const std::string& root,
                      std::size_t bucket) {
  Owed owed;
  comm::run_local_ranks(ranks.world, [&](comm::Communicator& flat) {
    Trained run(flat, ranks, bucket);
    for (int t = 0; t < 6; ++t) run.step();
    run.owe(owed);
    static_cast<void>(save(run.training, root, {}, {.durable = false}));
  });
  return owed;
}

class HostsPairs : public ::testing::TestWithParam<std::tuple<Ranks, Ranks>> {};
std::string name_of(const ::testing::TestParamInfo<HostsPairs::ParamType>& of) {
  const Ranks from = std::get<0>(of.param);
  const Ranks to = std::get<1>(of.param);
  return fmt::format("{}of{}To{}of{}", from.world / from.per_host,
                     from.per_host, to.world / to.per_host, to.per_host);
}

INSTANTIATE_TEST_SUITE_P(
    All, HostsPairs,
    ::testing::Combine(::testing::Values(Ranks{4, 2}, Ranks{4, 1}, Ranks{8, 4},
                                         Ranks{8, 2}),
                       ::testing::Values(Ranks{4, 2}, Ranks{4, 1}, Ranks{6, 3},
                                         Ranks{8, 4}, Ranks{8, 2})),
    name_of);

TEST_P(HostsPairs, KeepResiduals) {
  const auto& [from, to] = GetParam();
  for (const std::size_t bucket : {3000, 5000}) {
    const Folder folder;
    const Owed saved = save_after_steps(from, folder.path(), 3000);
    Owed loaded;
    comm::run_local_ranks(to.world, [&, &ranks = to](auto& flat) {
      Trained run(flat, ranks, bucket);
      static_cast<void>(load(run.training, folder.path()));
      run.owe(loaded);
      run.step();
    });
    double largest = 0;
    for (const double e : saved.workers)
      largest = std::max(largest, std::abs(e));
    EXPECT_GT(largest, 0);
    for (std::size_t i = 0; i < saved.workers.size(); ++i) {
      ASSERT_NEAR(loaded.workers[i], saved.workers[i], 1e-7 * largest) << i;
      ASSERT_EQ(loaded.servers[i], saved.servers[i]) << i;
    }
  }
}

TEST(SameHosts, ContinueBitEqualWithAnyBuckets) {
  const Ranks ranks{8, 4};
  for (const std::size_t bucket : {3000, 1, 100'000}) {
    const Folder folder;
    comm::run_local_ranks(ranks.world, [&](comm::Communicator& flat) {
      Trained main(flat, ranks, 3000);
      for (int t = 0; t < 5; ++t) main.step();
      static_cast<void>(
          save(main.training, folder.path(), {}, {.durable = false}));
      Trained next(flat, ranks, bucket);
      static_cast<void>(load(next.training, folder.path()));
      next.training.step = main.training.step;
      for (int t = 0; t < 3; ++t) {
        main.step();
        next.step();
        ASSERT_EQ(next.params, main.params) << bucket;
      }
    });
  }
}

}  // namespace
}  // namespace thinwire::checkpoint::by_host_test
