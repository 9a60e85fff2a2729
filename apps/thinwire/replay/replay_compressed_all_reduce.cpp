// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/families.h"
#include "apps/thinwire/replay/recorded_wire.h"
#include "deepspeed/compressed_all_reduce.h"

namespace thinwire::replay {

namespace {

// Repeats the recorded calls, each with one tensor as a unit.
template <class AllReduce>
void replay_calls(const RecordedCase& recorded, const comm::Communicator& comm,
                  AllReduce& all, std::vector<RecordedBlock> blocks,
                  Comparison& comparison) {
  const auto calls = recorded.meta().at("calls").get<std::size_t>();
  const auto rank = static_cast<std::size_t>(comm.rank());
  WireRecorder recorder({{0, recorded.meta().at("n").get<std::size_t>()}},
                        std::move(blocks));
  all.set_observer(&recorder);
  const RecordedArray& output = recorded.array("output.bin");
  const RecordedArray& wire = recorded.array("wire.bin");
  // All calls have the same messages, so only their offsets differ, which are
  // added here.
  nlohmann::json ops = nlohmann::json::array();
  std::size_t offset = 0;
  for (const auto& op : recorded.meta().at("ops")) {
    ops.push_back({op[0], op[1], offset, op[2]});
    offset += op[2].get<std::size_t>();
  }

  for (std::size_t call = 0; call < calls; ++call) {
    const auto input = recorded.array("input.bin").floats({rank, call});
    std::vector<float> values(input.begin(), input.end());
    all.all_reduce(values);
    const ConstView worker = all.worker_error();
    const ConstView server = all.server_error();
    comparison.floats({call, "output"}, values,
                      output.floats({output.row_of(comm.rank()), call}));
    comparison.floats({call, "worker_error"}, worker.as<float>(),
                      recorded.array("worker_error.bin").floats({rank, call}));
    comparison.floats({call, "server_error"}, server.as<float>(),
                      recorded.array("server_error.bin").floats({rank, call}));
    compare_wire(comparison, call, recorder.take(), ops,
                 wire.raw({rank, call}));
  }
}

}  // namespace

void replay_compressed_all_reduce(const RecordedCase& recorded,
                                  comm::Communicator& comm,
                                  config::Semantics semantics,
                                  Comparison& comparison) {
  const auto n = recorded.meta().at("n").get<std::size_t>();
  const std::vector<Range> units = {{0, n}};
  if (semantics == config::Semantics::kDeepSpeed) {
    deepspeed::CompressedAllReduce all(comm, units);
    replay_calls(recorded, comm, all,
                 blocks_per_unit(units, units, comm.size()), comparison);
  } else {
    ThreadPool pool(1);
    exchange::CompressedAllReduce all(comm, pool, units,
                                      {.blocks = {.world_size = comm.size()}});
    replay_calls(recorded, comm, all, blocks_of(units, all.layout()),
                 comparison);
  }
  for (const char* file :
       {"output.bin", "worker_error.bin", "server_error.bin", "wire.bin"})
    comparison.covered(file);
}

}  // namespace thinwire::replay
