// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <iosfwd>
#include <memory>
#include <type_traits>
#include <utility>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// The function that run() calls: body(communicator) returns nothing or the
/// program's exit code.
template <class Body>
concept RankBody = std::invocable<Body&, Communicator&> &&
    (std::is_void_v<std::invoke_result_t<Body&, Communicator&>> ||
     std::convertible_to<std::invoke_result_t<Body&, Communicator&>, int>);

namespace detail {

using BodyFunction = std::function<int(Communicator&)>;

template <RankBody Body>
BodyFunction returning_int(Body& body) {
  return [&body](Communicator& comm) -> int {
    if constexpr (std::is_void_v<std::invoke_result_t<Body&, Communicator&>>) {
      body(comm);
      return 0;
    } else {
      return body(comm);
    }
  };
}

int run(const BodyFunction& body, std::ostream* errors);
int run(Communicator& comm, const BodyFunction& body, std::ostream* errors);
int run(std::unique_ptr<Communicator> comm, const BodyFunction& body,
        std::ostream* errors);

}  // namespace detail

/// Runs the main() of a data-parallel program:
///   int main() { return thinwire::comm::run(train); }
/// Calls body(communicator) on from_environment()'s communicator and returns
/// its result, or 0 if it returns nothing. If it throws, this rank notifies the
/// other ranks and returns 1. Their next exchange with it throws, so that all
/// of them end.
///
/// This is the only function of the library that prints: it reports the
/// program's failure, with or without a log's sink (core/log.h). A rank that
/// fails independently writes "rank 1: ..." to `errors`, or to std::cerr if
/// that is null. If it is the only rank, it writes "error: ...". It waits for a
/// second before it writes: if all ranks fail within that time, for example
/// because their options differ, only rank 0 writes. A rank that ends because
/// of another rank's failure writes nothing. Collective. MPI is not finalized
/// after a failure, because that could wait for ranks that never finish.
template <RankBody Body>
[[nodiscard]] int run(Body&& body, std::ostream* errors = nullptr) {
  return detail::run(detail::returning_int(body), errors);
}

/// Runs the program on a communicator that the caller has made; after a failure
/// the caller may only destroy it. If its transport has no split(), the ranks
/// cannot agree on which of them reports. Every rank that fails independently
/// then writes at once, and notifies the others a second later.
template <RankBody Body>
[[nodiscard]] int run(Communicator& comm, Body&& body,
                      std::ostream* errors = nullptr) {
  return detail::run(comm, detail::returning_int(body), errors);
}

/// Runs the program and destroys the communicator before it returns. Throws
/// Error(kInvalidArgument) if `comm` is null.
template <RankBody Body>
[[nodiscard]] int run(std::unique_ptr<Communicator> comm, Body&& body,
                      std::ostream* errors = nullptr) {
  return detail::run(std::move(comm), detail::returning_int(body), errors);
}

}  // namespace thinwire::comm
