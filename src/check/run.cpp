#include "check/run.h"

#include "api/backends.h"
#include "check/device_case.h"
#include "plan/choose.h"
#include "problem/line_problem.h"

namespace foveal::check {

std::string run_case(problem::CaseData& data, const PlanOptions& options) {
  const Attention& attention = data.line().attention;
  const Device where = data.line().device;
  if (where.kind != DeviceKind::cpu)  // what cannot run there is refused before memory of the device is asked for
    planning::choose(problem::problem_of(data.line(), where), options, api::backends());
  DeviceCase device(data);
  if (data.line().pass == Pass::forward) {
    const Plan plan = foveal::plan(attention, device.forward_inputs(), device.forward_outputs(), options);
    forward(attention, device.forward_inputs(), device.forward_outputs(), {}, options);
    device.download();
    return plan.kernel();
  }
  const Plan plan = foveal::plan(attention, device.backward_inputs(), device.backward_outputs(), options);
  try {
    forward(attention, device.forward_inputs(), device.forward_outputs(), {}, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    forward(attention, data.forward_inputs(), data.forward_outputs(), {}, {.backend = "reference"});
    device.upload();
  }
  backward(attention, device.backward_inputs(), device.backward_outputs(), {}, options);
  device.download();
  return plan.kernel();
}

}  // namespace foveal::check
