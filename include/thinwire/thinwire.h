/* SPDX-License-Identifier: Apache-2.0 */
#ifndef THINWIRE_THINWIRE_H
#define THINWIRE_THINWIRE_H

#include <stddef.h>
#include <stdint.h>

/// The C interface, in C99: communicators, and an engine that trains flat
/// arrays according to a JSON configuration. Library: libthinwire_c.
///
/// A function that can fail returns a thinwire_status. If that is not
/// THINWIRE_OK, thinwire_last_error() has the message, and results are
/// unchanged. No exception leaves this library. "Collective" means that all
/// ranks make the same calls in the same order. If such a call fails on one
/// rank before any exchange, call thinwire_comm_give_up() so that the other
/// ranks do not wait for their time-out. Only one thread at a time may use an
/// object.

#if defined(__GNUC__)
#define THINWIRE_API __attribute__((visibility("default")))
#else
#define THINWIRE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// Kind of an error, which determines what the caller may do next. The numbers
/// will not change.
typedef enum thinwire_status {
  THINWIRE_OK = 0,
  /// An argument or a configuration is outside its range. Nothing has changed.
  THINWIRE_INVALID_ARGUMENT = 1,
  /// The object's present state forbids the call. Nothing has changed, unless
  /// thinwire_engine_step() has found changed values.
  THINWIRE_FAILED_PRECONDITION = 2,
  /// This build or machine lacks a feature, or a file cannot be read or
  /// written. Nothing has changed.
  THINWIRE_UNAVAILABLE = 3,
  /// A rank was lost, hung, or made another call. The communicator and its
  /// engines may only be freed.
  THINWIRE_COMM_FAILURE = 4,
  /// An accelerator failed. Objects that use it may only be freed.
  THINWIRE_DEVICE_FAILURE = 5,
  /// A checkpoint is incomplete, altered, or from another model. Nothing has
  /// changed.
  THINWIRE_CORRUPT_CHECKPOINT = 6,
  /// Gradients are not finite at any loss scale. Parameters and states are
  /// those of the last good step. A sync of an outer loop also returns this if
  /// parameters are not finite; then load a checkpoint.
  THINWIRE_NON_FINITE = 7,
  /// Memory has run out.
  THINWIRE_OUT_OF_MEMORY = 8,
  /// A fault of this library; please report it.
  THINWIRE_INTERNAL = 9
} thinwire_status;

/// Returns the version, for example "0.13.0".
THINWIRE_API const char* thinwire_version(void);

/// Returns the message of this thread's last call that failed, or "". Valid
/// until this thread's next call that fails.
THINWIRE_API const char* thinwire_last_error(void);

/// Receives one line of the log, without its end. `level` is "debug", "info"
/// or "warning". Any thread may call it, but only one at a time.
typedef void (*thinwire_log_function)(void* context, const char* level,
                                      const char* text);

/// Sends the later lines of this process to `log`. If it is NULL, which is the
/// default, lines are dropped. When this returns, the previous function is no
/// longer in use.
THINWIRE_API thinwire_status thinwire_set_log(thinwire_log_function log,
                                              void* context);

/* ---- communicators */

/// The ranks of one group.
typedef struct thinwire_comm thinwire_comm;

/// Makes the group of the job that this process belongs to: MPI under mpirun or
/// srun, otherwise a group of one. Environment: THINWIRE_COMM and
/// THINWIRE_TIMEOUT. Collective.
THINWIRE_API thinwire_status
thinwire_comm_from_environment(thinwire_comm** comm);

/// Makes `size` >= 1 communicators, for ranks that are threads of this process;
/// comms[r] belongs to rank r. THINWIRE_TIMEOUT is the longest time that one
/// collective may take. Local.
THINWIRE_API thinwire_status thinwire_comm_local(int size,
                                                 thinwire_comm** comms);

/// Bytes for one peer.
typedef struct thinwire_send {
  int peer;
  const void* data;
  size_t bytes;
} thinwire_send;

/// Memory for the bytes of one peer.
typedef struct thinwire_receive {
  int peer;
  void* data;
  size_t bytes;
} thinwire_receive;

/// One exchange of a transport.
typedef struct thinwire_exchange {
  const thinwire_send* sends;  ///< At most one per peer.
  size_t num_sends;
  const thinwire_receive* receives;  ///< At most one per peer.
  size_t num_receives;
  const char* operation;  ///< Name for messages, for example "all_to_all".
  /// Number of the exchange, which is equal on all ranks and increases with
  /// every exchange.
  uint64_t sequence;
  /// Time until the exchange must have ended. Only the transport can end it.
  double seconds_left;
} thinwire_exchange;

/// A transport of the caller, which moves bytes between the ranks.
typedef struct thinwire_transport {
  size_t struct_size;  ///< sizeof(thinwire_transport)
  void* context;       ///< First argument of each function.
  int rank;            ///< In [0, size).
  int size;            ///< Number of ranks, >= 1.
  /// Moves all messages; a message of 0 bytes is not sent. Returns 0 after all
  /// bytes were received and the memory of sent bytes may be reused. Returns
  /// another number if a peer is lost or the time is over, and may call
  /// thinwire_exchange_failed() before. Only one thread at a time calls it,
  /// which is not the thread that calls thinwire_*. It must not call functions
  /// of this library on the same communicator.
  int (*exchange)(void* context, const thinwire_exchange* exchange);
  /// Notifies the peers that this rank cannot continue, so that they do not
  /// wait for their time-out; may be NULL. It must not block. An exchange in
  /// progress must then return a number other than 0.
  void (*give_up)(void* context, const char* reason);
  /// Called when the transport is no longer used; may be NULL.
  void (*release)(void* context);
} thinwire_transport;

/// Makes a communicator over a transport of the caller. `seconds` > 0 is the
/// longest time that one collective may take, if `exchange` obeys its
/// seconds_left. Local.
THINWIRE_API thinwire_status thinwire_comm_from_transport(
    const thinwire_transport* transport, double seconds, thinwire_comm** comm);

/// Sets the reason why the present exchange of a thinwire_transport fails, for
/// example the reason with which a peer gave up. The error's message ends with
/// a copy of it. Call it only in thinwire_transport.exchange.
THINWIRE_API void thinwire_exchange_failed(const char* reason);

/// Makes a communicator over the ranks of an MPI communicator, given as
/// MPI_Comm_c2f() returns it. The program has initialized MPI with
/// MPI_THREAD_MULTIPLE, and finalizes it. The MPI communicator may be freed
/// afterwards: a duplicate of it stays until MPI is finalized. `seconds` > 0 is
/// the longest time that one collective may take. Collective over that MPI
/// communicator. THINWIRE_UNAVAILABLE if this library has no MPI.
THINWIRE_API thinwire_status thinwire_comm_from_mpi(int fortran_handle,
                                                    double seconds,
                                                    thinwire_comm** comm);

/// Return the rank, in [0, size), and the number of ranks; -1 if `comm` is
/// NULL.
THINWIRE_API int thinwire_comm_rank(const thinwire_comm* comm);
THINWIRE_API int thinwire_comm_size(const thinwire_comm* comm);

/// Blocks until every rank has called it. Collective.
THINWIRE_API thinwire_status thinwire_comm_barrier(thinwire_comm* comm);

/// Announces that this rank cannot continue. Its peers get
/// THINWIRE_COMM_FAILURE at their next exchange with it, with the text "rank R
/// gave up: REASON", except over a thinwire_transport. From then on `comm` and
/// its engines may only be freed. Local.
THINWIRE_API thinwire_status thinwire_comm_give_up(thinwire_comm* comm,
                                                   const char* reason);

/// Frees the handle; NULL is allowed. Existing engines remain usable.
THINWIRE_API void thinwire_comm_free(thinwire_comm* comm);

/* ---- the engine */

/// Optimizer, exchange, precision, learning rates and checkpoints of one model.
typedef struct thinwire_engine thinwire_engine;

/// A parameter of the model. Parameters lie one after the other in the flat
/// arrays, in the order given, without gaps.
typedef struct thinwire_parameter {
  /// Unique, not empty, UTF-8 without control characters, up to 1024 bytes.
  const char* name;
  const size_t* shape;  ///< `dims` sizes; NULL for a scalar.
  size_t dims;          ///< Up to 16.
} thinwire_parameter;

/// Makes an engine. Sends rank 0's parameters to all ranks and sets gradients
/// to 0. Collective. `config` is a configuration in JSON, with the keys of a
/// file (docs/guide/from-deepspeed.md), except thinwire.checkpoint. `params`
/// and `grads` are arrays of all parameters' elements, in the configuration's
/// precision: float, or 16 bits. They must outlive the engine, be aligned and
/// not overlap. `grads` is NULL with ZeRO stage 2, and with stage 1 if 16-bit
/// gradients of several backwards are summed in fp32. In these cases pass each
/// gradient to thinwire_engine_gradient_ready().
THINWIRE_API thinwire_status
thinwire_engine_new(thinwire_comm* comm, const char* config,
                    const thinwire_parameter* parameters, size_t num_parameters,
                    void* params, void* grads, thinwire_engine** engine);

/// Waits for pending exchanges and saves, and frees the engine; NULL is
/// allowed. Afterwards the caller may reuse the arrays.
THINWIRE_API void thinwire_engine_free(thinwire_engine* engine);

/// Returns the factor by which the caller multiplies the loss: the loss scale
/// divided by the number of accumulated backwards. Local.
THINWIRE_API thinwire_status
thinwire_engine_loss_factor(const thinwire_engine* engine, double* factor);

/// Begins a backward, in which the caller adds gradients to `grads`. Local.
THINWIRE_API thinwire_status
thinwire_engine_begin_backward(thinwire_engine* engine);

/// Declares that the gradient of parameter `index` is complete, so that its
/// exchange can begin. Optional if the engine has `grads`; `gradient` is then
/// NULL. Otherwise `gradient` has the parameter's elements, and is copied.
/// Local.
THINWIRE_API thinwire_status thinwire_engine_gradient_ready(
    thinwire_engine* engine, size_t index, const void* gradient);

/// Ends the backward. Until the step, gradients and parameters may be read, but
/// not changed; the step checks that at one element of each parameter. If it
/// finds a change, this rank gives up, and the others get
/// THINWIRE_COMM_FAILURE. Local, except for exchanges in flight.
THINWIRE_API thinwire_status
thinwire_engine_end_backward(thinwire_engine* engine);

/// Discards the gradients of a backward that failed because of `reason`. If
/// some have already been sent, returns THINWIRE_COMM_FAILURE, and the other
/// ranks get the reason.
THINWIRE_API thinwire_status
thinwire_engine_cancel_backward(thinwire_engine* engine, const char* reason);

/// Results of a step. They are equal on all ranks except for bytes_sent and the
/// seconds. In local steps, and in syncs of an outer loop, grad_norm is also
/// different for each worker.
typedef struct thinwire_report {
  size_t struct_size;  ///< Set by the caller: sizeof(thinwire_report).
  /// Whether the window of accumulated backwards is complete. If not, nothing
  /// was updated.
  int at_boundary;
  /// Whether the step was applied. If at_boundary is set and this is not, a
  /// gradient was not finite, and no parameter has changed on any rank.
  int applied;
  /// Kind of the averages: "exact", "compressed" or "local".
  const char* phase;
  int64_t steps;         ///< Applied so far.
  double learning_rate;  ///< Rate of this step.
  double grad_norm;      ///< L2 norm of the averaged gradient before clipping.
  double loss_scale;
  uint64_t bytes_sent;    ///< By this rank in this step.
  double seconds;         ///< Time of the whole step.
  double waited_seconds;  ///< Part of it, waiting for other ranks.
} thinwire_report;

/// Runs a step. Collective if the window is complete, otherwise local. `report`
/// may be NULL.
THINWIRE_API thinwire_status thinwire_engine_step(thinwire_engine* engine,
                                                  thinwire_report* report);

/// Sets the learning rate, finite and >= 0, from the next step on, overriding
/// the schedule. Local, so all ranks must make the same calls.
THINWIRE_API thinwire_status thinwire_engine_set_learning_rate(
    thinwire_engine* engine, double learning_rate);

/// Returns the mean of the ranks' values, such as losses. Collective.
THINWIRE_API thinwire_status thinwire_engine_mean(thinwire_engine* engine,
                                                  double value, double* mean);

/// Make parameters equal on all ranks between the two calls, during which there
/// is no backward or step. 0/1 Adam, outer loops and
/// compressed_under_next_step need them. Collective.
THINWIRE_API thinwire_status
thinwire_engine_begin_evaluation(thinwire_engine* engine);
THINWIRE_API thinwire_status
thinwire_engine_end_evaluation(thinwire_engine* engine);

/// Returns the `size` fp32 values of a parameter in the optimizer's precision,
/// from their owners. If `key` is NULL they are the parameter itself, otherwise
/// the state of that name, for example "exp_avg". `size` is the number of the
/// parameter's elements. Collective.
THINWIRE_API thinwire_status thinwire_engine_values(thinwire_engine* engine,
                                                    const char* parameter,
                                                    const char* key,
                                                    float* values, size_t size);

/// Writes the checkpoint ROOT/step-N, completely or not at all. Collective. If
/// a limit on file sizes is set, ignore SIGXFSZ, which would end the process.
THINWIRE_API thinwire_status thinwire_engine_save(thinwire_engine* engine,
                                                  const char* root);

/// Resumes from the newest complete checkpoint in a directory, or from the one
/// that `path` names, on any number of ranks. `step` gets its step, or -1 if
/// there is none yet, and may be NULL. Collective.
THINWIRE_API thinwire_status thinwire_engine_resume(thinwire_engine* engine,
                                                    const char* path,
                                                    int64_t* step);

#ifdef __cplusplus
}
#endif

#endif
