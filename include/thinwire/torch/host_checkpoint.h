// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/state_dict.h"

// The ranks of a host tell each other states as text, and their leader saves
// the values of all.
namespace thinwire::torch {

/// Returns the state as bytes for another rank of the same program.
inline std::string packed(const StateDict& state) {
  std::string bytes;
  const auto add = [&](std::string_view text) {
    const std::uint64_t size = text.size();
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
    bytes += text;
  };
  const auto kind_of = [](int kind) { return static_cast<char>(kind); };
  const auto add_value = [&](const auto& value) {
    add({reinterpret_cast<const char*>(&value), sizeof value});
  };
  for (const auto& [name, array] : state.arrays()) {
    bytes += kind_of(static_cast<int>(array.dtype()));
    add(name);
    add({static_cast<const char*>(array.view().data()), array.bytes()});
  }
  for (const auto& [name, scalar] : state.scalars()) {
    bytes += kind_of(-1 - static_cast<int>(scalar.index()));
    add(name);
    if (const auto* text = std::get_if<std::string>(&scalar)) add(*text);
    if (const auto* real = std::get_if<double>(&scalar)) add_value(*real);
    if (const auto* whole = std::get_if<std::int64_t>(&scalar))
      add_value(*whole);
  }
  return bytes;
}

/// Returns the state of packed().
inline StateDict unpacked(std::string_view bytes) {
  StateDict state;
  const auto take = [&] {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    const std::string_view found = bytes.substr(sizeof size, size);
    bytes.remove_prefix(sizeof size + size);
    return found;
  };
  while (!bytes.empty()) {
    // A plain char has no sign on some processors.
    const int kind = static_cast<signed char>(bytes.front());
    bytes.remove_prefix(1);
    const std::string name(take());
    const std::string_view value = take();
    std::int64_t whole = 0;
    double real = 0;
    if (kind >= 0) {
      const DType dtype = static_cast<DType>(kind);
      Buffer array(value.size() / size_of(dtype), dtype);
      if (!value.empty())
        std::memcpy(array.view().data(), value.data(), value.size());
      state.put(name, std::move(array));
    } else if (kind == -1) {
      std::memcpy(&whole, value.data(), sizeof whole);
      state.put_integer(name, whole);
    } else if (kind == -2) {
      std::memcpy(&real, value.data(), sizeof real);
      state.put_real(name, real);
    } else {
      state.put_text(name, std::string(value));
    }
  }
  return state;
}

/// Begins the names of what a leader saves for the ranks of its host.
inline const std::string kOfHost = "thinwire/host/";

/// Returns the own values of a host's ranks as one state. The leader's, which
/// are the first, have their names, and those of the K-th begin with
/// "thinwire/host/K/". `own` has a packed() state for each rank.
inline StateDict own_of_host(const std::vector<int>& ranks,
                             const std::vector<std::string>& own) {
  StateDict all = unpacked(own.front());
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    const std::string number = std::to_string(k);
    all.put_integer(kOfHost + "rank " + number, ranks[k]);
    if (k > 0) all.put_all(kOfHost + number + "/", unpacked(own[k]));
  }
  return all;
}

/// Divides the own values that leaders have saved for their hosts. Then
/// own_of_ranks has those of all ranks, and extra.own those of `rank`.
inline void divide_own(checkpoint::LoadReport& report, int rank) {
  std::map<std::int64_t, StateDict> of_ranks;
  for (const StateDict& saved : report.own_of_ranks) {
    const auto rank_of = [&](std::size_t k) {
      return kOfHost + "rank " + std::to_string(k);
    };
    StateDict own;
    for (const auto& [name, array] : saved.arrays())
      if (!name.starts_with(kOfHost)) own.put(name, array.view());
    for (const auto& [name, scalar] : saved.scalars())
      if (!name.starts_with(kOfHost)) own.put_scalar(name, scalar);
    const bool is_leader = saved.has_scalar(rank_of(0));
    of_ranks[is_leader ? saved.integer(rank_of(0))
                       : static_cast<std::int64_t>(of_ranks.size())] =
        std::move(own);
    for (std::size_t k = 1; saved.has_scalar(rank_of(k)); ++k)
      of_ranks[saved.integer(rank_of(k))] =
          saved.part(kOfHost + std::to_string(k) + "/");
  }
  report.own_of_ranks.clear();
  report.extra.own = StateDict();
  for (auto& [number, own] : of_ranks) {
    if (number == rank) report.extra.own.put_all("", own);
    report.own_of_ranks.push_back(std::move(own));
  }
}

/// Returns a load's report for report_of().
inline StateDict described(const checkpoint::LoadReport& report) {
  StateDict found;
  found.put_text("path", report.path);
  found.put_integer("step", report.step);
  found.put_text("run", report.run);
  found.put_integer("world", report.world);
  found.put_text("optimizer", report.optimizer);
  found.put_text("precision", report.precision);
  found.put_text("config", report.config);
  found.put_all("scalars/", report.scalars);
  found.put_all("common/", report.extra.common);
  found.put_integer("saved",
                    static_cast<std::int64_t>(report.own_of_ranks.size()));
  for (std::size_t k = 0; k < report.own_of_ranks.size(); ++k)
    found.put_all("own of " + std::to_string(k) + "/", report.own_of_ranks[k]);
  found.put_integer("notes", static_cast<std::int64_t>(report.notes.size()));
  for (std::size_t k = 0; k < report.notes.size(); ++k)
    found.put_text("note " + std::to_string(k), report.notes[k]);
  found.put_integer("bytes", static_cast<std::int64_t>(report.bytes));
  found.put_real("seconds", report.seconds);
  return found;
}

/// Returns the leader's report of a load, with the own values of `rank`.
inline checkpoint::LoadReport report_of(const StateDict& said, int rank) {
  checkpoint::LoadReport report;
  report.path = said.text("path");
  report.step = said.integer("step");
  report.run = said.text("run");
  report.world = static_cast<int>(said.integer("world"));
  report.optimizer = said.text("optimizer");
  report.precision = said.text("precision");
  report.config = said.text("config");
  report.scalars = said.part("scalars/");
  report.extra.common = said.part("common/");
  for (std::int64_t k = 0; k < said.integer("saved"); ++k)
    report.own_of_ranks.push_back(
        said.part("own of " + std::to_string(k) + "/"));
  for (std::int64_t k = 0; k < said.integer("notes"); ++k)
    report.notes.push_back(said.text("note " + std::to_string(k)));
  report.bytes = static_cast<std::uint64_t>(said.integer("bytes"));
  report.seconds = said.real("seconds");
  divide_own(report, rank);
  return report;
}

}  // namespace thinwire::torch
