// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "experts.h"
#include "saving/others.h"
#include "support/arrays.h"
#include "support/call.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/engine/engine.h"
#include "thinwire/optim/update_rule.h"

namespace thinwire::python {

/// An engine, and the objects that must outlive it.
struct EngineParts {
  std::shared_ptr<comm::Communicator> comm;
  Experts experts;  // including ranks that hold other parts of the model
  Array params;
  Array grads;
  Others others{};  // during a save or load
  std::optional<engine::Engine> engine{};
  OneCaller caller{};
};

/// _core.Engine. The Python object owns the callable for others, so that the
/// garbage collector finds a cycle through it.
class EngineHandle : public Handle<EngineParts> {
 public:
  explicit EngineHandle(std::shared_ptr<EngineParts> parts)
      : Handle("engine", std::move(parts)) {}

  nb::object others = nb::none();
};

/// Makes rules that a Python object computes: an optimizer of torch in an
/// engine. Call with the GIL. The object, engine._client.Client, has
///   name, description            texts; the same on all ranks
///   learning_rates               one per group
///   step(params, grads)          two memoryviews of fp32, params written
///   pack() -> bytes              its state, the same on all ranks
///   check(bytes) -> loaded       raises what does not fit, changes nothing
///   take(loaded)                 does not raise
[[nodiscard]] optim::MakeRule make_client_rule(nb::object client);

void bind_engine_checkpoints(nb::class_<EngineHandle>& kind);

}  // namespace thinwire::python
