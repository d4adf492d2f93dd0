// SPDX-License-Identifier: Apache-2.0
#include "server/signals.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace headwise {
namespace {

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

void BlockSignals() {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A file that grows beyond the system's limit is an error of the call that writes it.
  signal(SIGXFSZ, SIG_IGN);
}

SignalThread::SignalThread(SignalActions actions)
    : actions_(std::move(actions)), thread_([this] { Run(); }) {}

SignalThread::~SignalThread() {
  stop_.store(true);
  pthread_kill(thread_.native_handle(), SIGTERM);  // wakes it; the signal is blocked, so no harm
  thread_.join();
}

void SignalThread::Run() {
  const sigset_t signals = Signals();
  int stops = 0;
  for (;;) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (stop_.load()) return;
    if (signal == SIGUSR1 || signal == SIGUSR2) {
      actions_.log_level(signal == SIGUSR1);
    } else {
      actions_.stop(++stops);
    }
  }
}

}  // namespace headwise
