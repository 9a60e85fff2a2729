// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "support/folder.h"
#include "thinwire/comm/local.h"
#include "thinwire/comm/registry.h"
#include "thinwire/engine/engine.h"
#include "thinwire/thinwire.h"

namespace thinwire::c_test {
namespace {

constexpr std::array<std::size_t, 2> kShape = {41, 3};
constexpr std::size_t kSize = 41 * 3 + 1;
const std::array<thinwire_parameter, 2> kParameters = {
    {{"weight", kShape.data(), 2}, {"bias", nullptr, 0}}};
const std::string kOnebitAdam =
    R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1,
        "optimizer": {"type": "OneBitAdam",
                      "params": {"lr": 0.01, "freeze_step": 5}}})";

float gradient(int rank, int step, std::size_t i, float value) {
  return value - (i % 2 == 0 ? 1.0f : -1.0f) +
         0.1f * static_cast<float>(
                    (static_cast<int>(i) * 7 + step * 13 + rank * 5) % 11 - 5);
}

void ok(thinwire_status status) {
  ASSERT_EQ(status, THINWIRE_OK) << thinwire_last_error();
}

void expect(thinwire_status want, const std::string& text,
            thinwire_status status) {
  EXPECT_EQ(status, want);
  EXPECT_NE(std::string(thinwire_last_error()).find(text), std::string::npos)
      << thinwire_last_error();
}

// Body per rank, each on a thread of its own.
void on_threads(const std::vector<thinwire_comm*>& comms,
                const std::function<void(thinwire_comm*, int rank)>& body) {
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < comms.size(); ++rank)
    threads.emplace_back([&, rank] {
      body(comms[rank], static_cast<int>(rank));
      thinwire_comm_free(comms[rank]);
    });
}

std::vector<thinwire_comm*> local(int size) {
  std::vector<thinwire_comm*> comms(static_cast<std::size_t>(size));
  ok(thinwire_comm_local(size, comms.data()));
  return comms;
}

struct Training {
  std::vector<float> params = std::vector<float>(kSize, 0.25f);
  std::vector<float> grads = std::vector<float>(kSize);
  thinwire_engine* engine = nullptr;
  thinwire_report report{};

  Training(thinwire_comm* comm, const std::string& config) {
    report.struct_size = sizeof report;
    ok(thinwire_engine_new(comm, config.c_str(), kParameters.data(),
                           kParameters.size(), params.data(), grads.data(),
                           &engine));
  }
  ~Training() { thinwire_engine_free(engine); }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  void steps(int rank, int first, int last) {
    for (int step = first; step <= last; ++step) {
      ok(thinwire_engine_begin_backward(engine));
      for (std::size_t i = 0; i < kSize; ++i)
        grads[i] += gradient(rank, step, i, params[i]);
      ok(thinwire_engine_gradient_ready(engine, 1, nullptr));
      ok(thinwire_engine_end_backward(engine));
      ok(thinwire_engine_step(engine, &report));
    }
  }
};

std::vector<float> trained_in_cpp(int world, int steps) {
  std::vector<float> result;
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    const auto layout = ParameterLayout::of(
        {{.name = "weight", .shape = {41, 3}}, {.name = "bias", .shape = {}}});
    std::vector<float> params(kSize, 0.25f), grads(kSize);
    engine::Engine engine(comm, layout, config::Config::from_json(kOnebitAdam),
                          params, grads);
    for (int step = 1; step <= steps; ++step) {
      engine.begin_backward();
      for (std::size_t i = 0; i < kSize; ++i)
        grads[i] += gradient(comm.rank(), step, i, params[i]);
      engine.end_backward();
      (void)engine.step();
    }
    if (comm.rank() == 0) result = params;
  });
  return result;
}

TEST(CInterface, TrainsWithTheBitsOfTheCppEngine) {
  const std::vector<float> want = trained_in_cpp(3, 12);
  on_threads(local(3), [&](thinwire_comm* comm, int rank) {
    EXPECT_EQ(thinwire_comm_rank(comm), rank);
    EXPECT_EQ(thinwire_comm_size(comm), 3);
    Training run(comm, kOnebitAdam);
    run.steps(rank, 1, 12);
    EXPECT_EQ(run.params, want);
    EXPECT_STREQ(run.report.phase, "compressed");
    EXPECT_EQ(run.report.steps, 12);
    EXPECT_EQ(run.report.learning_rate, 0.01);
    EXPECT_GT(run.report.bytes_sent, 0u);
    double mean = 0;
    ok(thinwire_engine_mean(run.engine, rank, &mean));
    EXPECT_EQ(mean, 1);
  });
}

TEST(CInterface, WritesTelemetryWhereTheConfigurationSays) {
  const thinwire::test::Folder folder;
  const std::string path = folder.in("steps.jsonl");
  const std::string config = kOnebitAdam.substr(0, kOnebitAdam.size() - 1) +
                             R"(, "thinwire": {"telemetry": {"path": ")" +
                             path + R"("}}})";
  on_threads(local(2), [&](thinwire_comm* comm, int rank) {
    Training run(comm, config);
    run.steps(rank, 1, 4);
  });
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines)
    EXPECT_NE(line.find(R"("bytes_sent":)"), std::string::npos) << line;
  EXPECT_EQ(lines, 4);
}

// tests/c/mpi.c has the communicators that exist.
TEST(CInterface, AsksForAnInitializedMpi) {
  const auto backends = comm::backends();
  const auto mpi = std::ranges::find(backends, "mpi", &comm::Backend::name);
  ASSERT_NE(mpi, backends.end());
  thinwire_comm* made = nullptr;
  if (mpi->why_unavailable().empty())
    expect(THINWIRE_FAILED_PRECONDITION, "MPI must be initialized first",
           thinwire_comm_from_mpi(0, 60, &made));
  else
    expect(THINWIRE_UNAVAILABLE, "this build has no MPI",
           thinwire_comm_from_mpi(0, 60, &made));
  EXPECT_EQ(made, nullptr);
}

// Messages of two ranks in one process, by sequence number.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::tuple<int, std::uint64_t>, std::vector<char>> messages;
  std::string given_up;
  int released = 0;
};

struct End {
  Mailbox* box;
  int rank;
};

int exchange(void* context, const thinwire_exchange* of) {
  const auto [box, rank] = *static_cast<End*>(context);
  std::unique_lock lock(box->mutex);
  for (std::size_t k = 0; k < of->num_sends; ++k) {
    const auto* data = static_cast<const char*>(of->sends[k].data);
    box->messages[{rank, of->sequence}] = {data, data + of->sends[k].bytes};
  }
  box->changed.notify_all();
  for (std::size_t k = 0; k < of->num_receives; ++k) {
    const std::tuple key{of->receives[k].peer, of->sequence};
    const bool arrived = box->changed.wait_for(
        lock, std::chrono::duration<double>(of->seconds_left),
        [&] { return box->messages.contains(key) || !box->given_up.empty(); });
    if (!arrived || !box->messages.contains(key)) {
      if (!box->given_up.empty())
        thinwire_exchange_failed(box->given_up.c_str());
      return 7;
    }
    std::memcpy(of->receives[k].data, box->messages[key].data(),
                of->receives[k].bytes);
    box->messages.erase(key);
  }
  return 0;
}

void give_up(void* context, const char* reason) {
  Mailbox* box = static_cast<End*>(context)->box;
  const std::lock_guard lock(box->mutex);
  box->given_up = reason;
  box->changed.notify_all();
}

void release(void* context) {
  Mailbox* box = static_cast<End*>(context)->box;
  const std::lock_guard lock(box->mutex);
  ++box->released;
}

thinwire_transport transport_of(End& end) {
  return {.struct_size = sizeof(thinwire_transport),
          .context = &end,
          .rank = end.rank,
          .size = 2,
          .exchange = exchange,
          .give_up = give_up,
          .release = release};
}

std::vector<thinwire_comm*> over_transports(std::array<End, 2>& ends) {
  std::vector<thinwire_comm*> comms;
  for (End& end : ends) {
    const thinwire_transport transport = transport_of(end);
    ok(thinwire_comm_from_transport(&transport, 20, &comms.emplace_back()));
  }
  return comms;
}

TEST(CInterface, TrainsOverATransportOfTheCaller) {
  const test::Folder folder;
  const std::vector<float> want = trained_in_cpp(2, 9);
  Mailbox box;
  std::array<End, 2> ends = {{{&box, 0}, {&box, 1}}};
  on_threads(over_transports(ends), [&](thinwire_comm* comm, int rank) {
    Training run(comm, kOnebitAdam);
    run.steps(rank, 1, 9);
    EXPECT_EQ(run.params, want);
    const std::string root = folder.in("checkpoints");
    ok(thinwire_engine_save(run.engine, root.c_str()));
    run.steps(rank, 10, 11);
    std::int64_t step = 0;
    ok(thinwire_engine_resume(run.engine, root.c_str(), &step));
    EXPECT_EQ(step, 9);
    EXPECT_EQ(run.params, want);
  });
  EXPECT_EQ(box.released, 2);
}

TEST(CInterface, ATransportThatFailsIsACommFailure) {
  Mailbox box;
  End end{&box, 0};
  const thinwire_transport transport = transport_of(end);
  thinwire_comm* comm = nullptr;
  ok(thinwire_comm_from_transport(&transport, 0.2, &comm));
  expect(THINWIRE_COMM_FAILURE, "barrier: the transport's exchange returned 7",
         thinwire_comm_barrier(comm));
  thinwire_comm_free(comm);
  EXPECT_EQ(box.released, 1);
}

TEST(CInterface, ATransportSaysWhyItFails) {
  Mailbox box;
  std::array<End, 2> ends = {{{&box, 0}, {&box, 1}}};
  on_threads(over_transports(ends), [](thinwire_comm* comm, int rank) {
    if (rank == 1) return ok(thinwire_comm_give_up(comm, "the disk is full"));
    expect(THINWIRE_COMM_FAILURE, "exchange returned 7: the disk is full",
           thinwire_comm_barrier(comm));
  });
}

TEST(CInterface, ARankThatGivesUpIsNamed) {
  on_threads(local(2), [](thinwire_comm* comm, int rank) {
    if (rank == 1) return ok(thinwire_comm_give_up(comm, "the disk is full"));
    expect(THINWIRE_COMM_FAILURE, "rank 1 gave up: the disk is full",
           thinwire_comm_barrier(comm));
  });
}

TEST(CInterface, ResumesOnAnotherNumberOfRanks) {
  const test::Folder folder;
  const std::string root = folder.in("checkpoints");
  std::vector<float> saved, moment(41 * 3);
  on_threads(local(3), [&](thinwire_comm* comm, int rank) {
    Training run(comm, kOnebitAdam);
    std::int64_t step = 0;
    ok(thinwire_engine_resume(run.engine, root.c_str(), &step));
    EXPECT_EQ(step, -1);
    run.steps(rank, 1, 8);
    ok(thinwire_engine_save(run.engine, root.c_str()));
    std::vector<float> values(41 * 3);
    ok(thinwire_engine_values(run.engine, "weight", "exp_avg", values.data(),
                              values.size()));
    if (rank != 0) return;
    saved = run.params;
    moment = values;
  });
  on_threads(local(2), [&](thinwire_comm* comm, int rank) {
    Training run(comm, kOnebitAdam);
    std::int64_t step = 0;
    ok(thinwire_engine_resume(run.engine, root.c_str(), &step));
    EXPECT_EQ(step, 8);
    EXPECT_EQ(run.params, saved);
    std::vector<float> values(41 * 3);
    ok(thinwire_engine_values(run.engine, "weight", nullptr, values.data(),
                              values.size()));
    EXPECT_EQ(values, std::vector<float>(saved.begin(), saved.end() - 1));
    ok(thinwire_engine_values(run.engine, "weight", "exp_avg", values.data(),
                              values.size()));
    EXPECT_EQ(values, moment);
    run.steps(rank, 9, 10);
    EXPECT_EQ(run.report.steps, 10);
  });
}

TEST(CInterface, WithZero2EachGradientIsPassed) {
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 1,
          "zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam"}})";
  on_threads(local(2), [&](thinwire_comm* comm, int) {
    std::vector<float> params(kSize), gradients(kSize, 1.0f);
    thinwire_engine* engine = nullptr;
    expect(THINWIRE_INVALID_ARGUMENT,
           "grads must be NULL with this configuration",
           thinwire_engine_new(comm, config.c_str(), kParameters.data(), 2,
                               params.data(), gradients.data(), &engine));
    ok(thinwire_engine_new(comm, config.c_str(), kParameters.data(), 2,
                           params.data(), nullptr, &engine));
    ok(thinwire_engine_begin_backward(engine));
    for (std::size_t k = 0; k < 2; ++k)
      ok(thinwire_engine_gradient_ready(engine, k, gradients.data()));
    ok(thinwire_engine_end_backward(engine));
    ok(thinwire_engine_step(engine, nullptr));
    EXPECT_LT(params[0], 0);
    EXPECT_EQ(params, std::vector<float>(kSize, params[0]));
    thinwire_engine_free(engine);
  });
}

TEST(CInterface, RefusesWhatItCannotUse) {
  EXPECT_STREQ(thinwire_version(), THINWIRE_VERSION);
  expect(THINWIRE_INVALID_ARGUMENT, "comms must be not NULL",
         thinwire_comm_local(1, nullptr));
  std::array<thinwire_comm*, 1> comms{};
  expect(THINWIRE_INVALID_ARGUMENT, "world_size",
         thinwire_comm_local(0, comms.data()));
  EXPECT_EQ(comms[0], nullptr);
  EXPECT_EQ(thinwire_comm_rank(nullptr), -1);
  EXPECT_EQ(thinwire_comm_size(nullptr), -1);

  Mailbox box;
  End end{&box, 0};
  thinwire_transport transport = transport_of(end);
  thinwire_comm* comm = nullptr;
  expect(THINWIRE_INVALID_ARGUMENT, "seconds must be in (0, 1e9], got nan",
         thinwire_comm_from_transport(&transport, std::nan(""), &comm));
  transport.rank = 2;
  expect(THINWIRE_INVALID_ARGUMENT, "transport.rank must be in [0, 2), got 2",
         thinwire_comm_from_transport(&transport, 1, &comm));
  transport.struct_size = 1;
  expect(THINWIRE_INVALID_ARGUMENT, "transport.struct_size",
         thinwire_comm_from_transport(&transport, 1, &comm));
  EXPECT_EQ(box.released, 0);

  ok(thinwire_comm_local(1, comms.data()));
  std::vector<float> params(kSize), grads(kSize);
  thinwire_engine* engine = nullptr;
  const auto make = [&](const char* config, const thinwire_parameter* of,
                        float* gradients) {
    return thinwire_engine_new(comms[0], config, of, 2, params.data(),
                               gradients, &engine);
  };
  expect(THINWIRE_INVALID_ARGUMENT, "JSON",
         make("{", kParameters.data(), grads.data()));
  expect(THINWIRE_INVALID_ARGUMENT, "grads must be not NULL, got NULL",
         make(kOnebitAdam.c_str(), kParameters.data(), nullptr));
  const std::array<thinwire_parameter, 2> unnamed = {
      {{nullptr, nullptr, 0}, {"b", nullptr, 0}}};
  expect(THINWIRE_INVALID_ARGUMENT, "parameters[0].name must be not NULL",
         make(kOnebitAdam.c_str(), unnamed.data(), grads.data()));
  expect(THINWIRE_INVALID_ARGUMENT, "zero.stage (zero_optimization.stage) must",
         make(R"({"optimizer": {"type": "OneBitAdam"},
                  "zero_optimization": {"stage": 2}})",
              kParameters.data(), grads.data()));
  expect(THINWIRE_INVALID_ARGUMENT, "thinwire.checkpoint must be left out in C",
         make(R"({"optimizer": {"type": "Adam"},
                  "thinwire": {"checkpoint": {"every_steps": 3}}})",
              kParameters.data(), grads.data()));
  expect(THINWIRE_INVALID_ARGUMENT, "params and grads must not overlap",
         make(kOnebitAdam.c_str(), kParameters.data(), params.data()));
  EXPECT_EQ(engine, nullptr);

  ok(make(kOnebitAdam.c_str(), kParameters.data(), grads.data()));
  expect(THINWIRE_FAILED_PRECONDITION, "backward",
         thinwire_engine_step(engine, nullptr));
  thinwire_report report{};
  ok(thinwire_engine_begin_backward(engine));
  expect(THINWIRE_INVALID_ARGUMENT, "index must be in [0, 2), got 2",
         thinwire_engine_gradient_ready(engine, 2, nullptr));
  ok(thinwire_engine_end_backward(engine));
  expect(THINWIRE_INVALID_ARGUMENT, "report.struct_size",
         thinwire_engine_step(engine, &report));
  expect(THINWIRE_INVALID_ARGUMENT, "weight",
         thinwire_engine_values(engine, "weigth", nullptr, params.data(), 1));
  expect(THINWIRE_INVALID_ARGUMENT, "size must be 123, got 1",
         thinwire_engine_values(engine, "weight", nullptr, params.data(), 1));
  thinwire_comm_free(comms[0]);  // The engine keeps the communicator.
  report.struct_size = sizeof report;
  ok(thinwire_engine_step(engine, &report));
  thinwire_engine_free(engine);
  thinwire_engine_free(nullptr);
  thinwire_comm_free(nullptr);
}

TEST(CInterface, TheLogGoesToAFunction) {
  std::vector<std::string> lines;
  ok(thinwire_set_log(
      [](void* context, const char* level, const char* text) {
        static_cast<std::vector<std::string>*>(context)->push_back(
            std::string(level) + ": " + text);
      },
      &lines));
  on_threads(local(1), [](thinwire_comm* comm, int) {
    Training run(comm,
                 R"({"train_batch_size": 1, "dump_state": true,
                "optimizer": {"type": "Adam"}})");
  });
  ok(thinwire_set_log(nullptr, nullptr));
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines.front().find("dump_state"), std::string::npos);
}

}  // namespace
}  // namespace thinwire::c_test
