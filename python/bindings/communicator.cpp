// SPDX-License-Identifier: Apache-2.0
#include "communicator.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/require.h"
#include "support/arrays.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/comm/local.h"
#include "thinwire/comm/registry.h"

namespace thinwire::python {
namespace {

using Made = std::unique_ptr<CommunicatorHandle>;

Made to_handle(std::unique_ptr<comm::Communicator> made) {
  if (!made) return nullptr;
  return std::make_unique<CommunicatorHandle>(
      "communicator", std::shared_ptr<comm::Communicator>(std::move(made)));
}

comm::CommunicatorOptions options(double timeout) {
  constexpr double kLongest = 1e9;
  require(timeout > 0 && timeout <= kLongest, "timeout", "in (0, 1e9] seconds",
          timeout);
  return {.timeout = std::chrono::milliseconds(
              static_cast<std::int64_t>(std::ceil(timeout * 1000)))};
}

Made over(nb::object transport, double timeout) {
  return to_handle(std::make_unique<comm::Communicator>(
      make_transport(std::move(transport)), options(timeout)));
}

std::vector<Made> local_group(int size, double timeout) {
  std::vector<Made> all;
  for (auto& made : comm::make_local_group(size, options(timeout)))
    all.push_back(to_handle(std::move(made)));
  return all;
}

Made from_environment() {
  std::unique_ptr<comm::Communicator> made;
  {
    const WithoutGil released;
    made = comm::from_environment();
  }
  return to_handle(std::move(made));
}

Made split(const CommunicatorHandle& self, int color, int key) {
  return to_handle(without_gil(
      self.get(), [=](auto& group) { return group.split(color, key); }));
}

// Returns the ranks of each host, in local order; empty if flat.
std::vector<std::vector<int>> find_hosts(const CommunicatorHandle& self,
                                         int ranks_per_host) {
  const comm::Hosts found = without_gil(self.get(), [=](auto& group) {
    return comm::find_hosts(group, {.ranks_per_host = ranks_per_host});
  });
  std::vector<std::vector<int>> hosts;
  for (auto at = found.ranks.begin(); at != found.ranks.end();
       at += found.ranks_per_host)
    hosts.emplace_back(at, at + found.ranks_per_host);
  return hosts;
}

void broadcast(const CommunicatorHandle& self, nb::handle values, int root) {
  const Array array(values, "values");
  without_gil(self.get(),
              [&](auto& group) { group.broadcast(array.view(), root); });
}

void all_reduce(const CommunicatorHandle& self, nb::handle values, bool mean) {
  const Array array(values, "values");
  const auto op = mean ? comm::ReduceOp::kMean : comm::ReduceOp::kSum;
  without_gil(self.get(),
              [&](auto& group) { group.all_reduce(array.view(), op); });
}

void all_gather(const CommunicatorHandle& self, nb::handle values,
                nb::handle output) {
  const ConstArray from(values, "values");
  const Array to(output, "output");
  without_gil(self.get(),
              [&](auto& group) { group.all_gather(from.view(), to.view()); });
}

void all_to_all(const CommunicatorHandle& self, nb::handle values,
                nb::handle output) {
  const ConstArray from(values, "values");
  const Array to(output, "output");
  without_gil(self.get(),
              [&](auto& group) { group.all_to_all(from.view(), to.view()); });
}

void require_same(const CommunicatorHandle& self, const std::string& what,
                  const std::string& text) {
  without_gil(self.get(),
              [&](auto& group) { comm::require_same(group, what, text); });
}

std::vector<std::string> gather_texts(const CommunicatorHandle& self,
                                      const std::string& text) {
  return without_gil(
      self.get(), [&](auto& group) { return comm::gather_texts(group, text); });
}

void barrier(const CommunicatorHandle& self) {
  without_gil(self.get(), [](auto& group) { group.barrier(); });
}

void give_up(const CommunicatorHandle& self, const std::string& reason) {
  without_gil(self.get(), [&](auto& group) { group.give_up(reason); });
}

void bind_properties(nb::class_<CommunicatorHandle>& kind) {
  using Self = const CommunicatorHandle;
  kind.def_prop_ro("rank", [](Self& self) { return self.look().rank(); })
      .def_prop_ro("size", [](Self& self) { return self.look().size(); })
      .def_prop_ro(
          "backend",
          [](Self& self) { return std::string(self.look().backend()); })
      .def_prop_ro(
          "timeout",
          [](Self& self) {
            return std::chrono::duration<double>(self.look().timeout()).count();
          })
      .def_prop_ro("bytes_sent",
                   [](Self& self) { return self.look().counters().bytes_sent; })
      .def_prop_ro(
          "collectives",
          [](Self& self) { return self.look().counters().collectives; })
      .def_prop_ro("closed", &CommunicatorHandle::is_closed);
}

}  // namespace

void bind_communicator(nb::module_& module) {
  nb::class_<CommunicatorHandle> kind(module, "Communicator",
                                      nb::is_weak_referenceable());
  bind_properties(kind);
  kind.def("barrier", &barrier)
      .def("broadcast", &broadcast, "values"_a, "root"_a)
      .def("all_reduce", &all_reduce, "values"_a, "mean"_a = false)
      .def("all_gather", &all_gather, "values"_a, "output"_a)
      .def("all_to_all", &all_to_all, "values"_a, "output"_a)
      .def("require_same", &require_same, "what"_a, "text"_a)
      .def("gather_texts", &gather_texts, "text"_a)
      .def("split", &split, "color"_a, "key"_a = 0,
           nb::sig("def split(self, color: int, key: int = 0) -> "
                   "Communicator | None"))
      .def("find_hosts", &find_hosts, "ranks_per_host"_a)
      .def("give_up", &give_up, "reason"_a)
      .def("close", &CommunicatorHandle::close);
  module.def("over", &over, "transport"_a, "timeout"_a = 600.0);
  module.def("local_group", &local_group, "size"_a, "timeout"_a = 600.0);
  module.def("from_environment", &from_environment);
}

}  // namespace thinwire::python
