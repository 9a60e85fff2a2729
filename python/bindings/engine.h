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

namespace thinwire::python {

/// An engine, and the objects that it needs to live.
struct EngineParts {
  std::shared_ptr<comm::Communicator> comm;
  Experts experts;  // and the ranks that hold other parts of the model
  Array params;
  Array grads;
  Others others{};  // of the save or load in flight
  std::optional<engine::Engine> engine{};
  OneCaller caller{};
};

/// _core.Engine. The Python object owns the callable for others, so that the
/// garbage collector sees a cycle through it.
class EngineHandle : public Handle<EngineParts> {
 public:
  explicit EngineHandle(std::shared_ptr<EngineParts> parts)
      : Handle("engine", std::move(parts)) {}

  nb::object others = nb::none();
};

void bind_engine_checkpoints(nb::class_<EngineHandle>& kind);

}  // namespace thinwire::python
