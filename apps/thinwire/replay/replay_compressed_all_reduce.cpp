// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/families.h"
#include "apps/thinwire/replay/recorded_wire.h"

namespace thinwire::replay {

void replay_compressed_all_reduce(const RecordedCase& recorded,
                                  comm::Communicator& comm,
                                  config::Semantics semantics,
                                  Comparison& comparison) {
  const auto n = recorded.meta().at("n").get<std::size_t>();
  const auto calls = recorded.meta().at("calls").get<std::size_t>();
  const auto rank = static_cast<std::size_t>(comm.rank());
  const bool is_reference = semantics == config::Semantics::kDeepSpeed;

  ThreadPool pool(1);
  const std::vector<Range> units = {{0, n}};
  exchange::CompressedAllReduce all(
      comm, pool, units,
      {.blocks = {.world_size = comm.size(), .scale_per_unit = is_reference},
       .checks_finite = !is_reference,
       .compresses_alone = is_reference});
  WireRecorder recorder(units, all.layout());
  all.set_observer(&recorder);

  const RecordedArray& output = recorded.array("output.bin");
  const RecordedArray& wire = recorded.array("wire.bin");
  // Every call has the same messages one after the other: give them offsets.
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
    comparison.floats({call, "output"}, values,
                      output.floats({output.row_of(comm.rank()), call}));
    comparison.floats({call, "worker_error"}, all.worker_error().as<float>(),
                      recorded.array("worker_error.bin").floats({rank, call}));
    comparison.floats({call, "server_error"}, all.server_error().as<float>(),
                      recorded.array("server_error.bin").floats({rank, call}));
    compare_wire(comparison, call, recorder.take(), ops,
                 wire.raw({rank, call}));
  }
  for (const char* file :
       {"output.bin", "worker_error.bin", "server_error.bin", "wire.bin"})
    comparison.covered(file);
}

}  // namespace thinwire::replay
