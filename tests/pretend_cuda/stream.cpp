// The pretend libcuda: streams, events, captures, graphs.
#include <algorithm>
#include <chrono>

#include "driver.hpp"

namespace pretend {

namespace {
double now_ms() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The null stream of each device: it works, but a program that has several threads must not use it.
CUstream default_stream() {
    static auto* made = new std::map<CUcontext, CUstream>;
    CUstream& stream = (*made)[current];
    if (!stream) {
        auto one = std::make_unique<pretend_stream>();
        if (!checker().open(one->lane, current->number)) return nullptr;
        stream = driver().streams.add(std::move(one));
    }
    return stream;
}

u32 add_node(CUstream stream, pretend_node node) {
    pretend_capture& capture = *stream->capture;
    node.lane = stream->capture_lane;
    capture.graph->nodes.push_back(std::move(node));
    capture.joined[stream->capture_lane][stream->capture_lane] += 1;
    return static_cast<u32>(capture.graph->nodes.size() - 1);
}

void join(std::vector<u32>& into, const std::vector<u32>& other) {
    if (into.size() < other.size()) into.resize(other.size());
    for (size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

u32 add_lane(std::shared_ptr<pretend_capture> capture, CUstream stream) {
    const u32 lane = capture->graph->lanes++;
    capture->streams.push_back(stream);
    capture->joined.emplace_back(lane + 1);
    stream->capture_lane = lane;
    stream->capture = std::move(capture);
    return lane;
}

// The capture is over: its streams work as before.
void finish(const std::shared_ptr<pretend_capture>& capture) {
    for (CUstream each : capture->streams)
        if (each) each->capture = nullptr;
    driver().captures.erase(capture);
}

bool under_way(const std::shared_ptr<pretend_capture>& capture) { return driver().captures.count(capture) != 0; }

CUresult record_in_capture(CUstream stream, CUevent event) {
    auto capture = stream->capture;
    if (capture->invalid) return CAPTURE_INVALIDATED;
    event->node = add_node(stream, {pretend_node::RECORD, 0, 0, "", {}});
    event->capture = capture;
    event->covers = capture->joined[stream->capture_lane];
    return SUCCESS;
}

CUresult wait_in_capture(CUstream stream, CUevent event) {
    if (!event->capture || !under_way(event->capture)) {
        if (!event->recorded && !event->capture) return SUCCESS;
        invalidate(*stream->capture);
        return CAPTURE_ISOLATION;
    }
    auto capture = event->capture;
    if (stream->capture && stream->capture != capture) {
        invalidate(*stream->capture);
        invalidate(*capture);
        return CAPTURE_MERGE;
    }
    if (capture->invalid) return CAPTURE_INVALIDATED;
    if (!stream->capture) add_lane(capture, stream);
    join(capture->joined[stream->capture_lane], event->covers);
    add_node(stream, {pretend_node::WAIT, 0, event->node, "", {}});
    return SUCCESS;
}

// Events and streams that a capture touched say so, and what asked is refused.
CUresult refuse_captured(CUevent event) {
    if (!event->capture) return SUCCESS;
    invalidate(*event->capture);
    return CAPTURED_EVENT;
}

bool covered_by_host(const Clock& clock) {
    for (u32 i = 0; i < LANES; ++i)
        if (checker().host().clock.seen[i] < clock.seen[i]) return false;
    return true;
}

CUresult create(CUstream* out, unsigned flags) {
    if (!out || flags > 1) return INVALID_VALUE;
    auto made = std::make_unique<pretend_stream>();
    made->flags = flags;
    if (!checker().open(made->lane, current->number)) return OUT_OF_MEMORY;
    *out = driver().streams.add(std::move(made));
    return SUCCESS;
}

CUresult elapsed(float* ms, CUevent start, CUevent end) {
    if (!driver().events.has(start) || !driver().events.has(end)) return INVALID_HANDLE;
    if ((start->flags | end->flags) & 2 || !start->recorded || !end->recorded) return INVALID_HANDLE;
    *ms = static_cast<float>(end->time - start->time);
    return SUCCESS;
}
}  // namespace

CUresult stream_of(CUstream handle, CUstream& out) {
    if (!handle) {
        out = default_stream();
        checker().report("the default stream was used", checker().current(), 0, "after this operation");
        return out ? SUCCESS : OUT_OF_MEMORY;
    }
    if (!driver().streams.has(handle) || handle->lane.device != current->number) return INVALID_HANDLE;
    out = handle;
    return SUCCESS;
}

void block_handed_out(u64 address, u64 bytes) {
    Allocation* a = checker().find(address);
    for (const auto& capture : driver().captures) {
        if (!a || capture->thread != std::this_thread::get_id() || capture->graph->device != a->device ||
            capture->invalid)
            continue;
        if (capture->streams[0])
            add_node(capture->streams[0], {pretend_node::BLANK, 0, 0, "", [=] { checker().blank(address, bytes); }});
    }
}

void invalidate(pretend_capture& capture) { capture.invalid = true; }

CUresult refuse_capture(CUstream stream) {
    if (!stream->capture) return SUCCESS;
    if (stream->capture->invalid) return CAPTURE_INVALIDATED;
    invalidate(*stream->capture);
    return CAPTURE_UNSUPPORTED;
}

CUresult submit(CUstream stream, const char* name, std::function<void()> run) {
    if (!stream->capture) {
        checker().begin(stream->lane, name);
        run();
        return SUCCESS;
    }
    if (stream->capture->invalid) return CAPTURE_INVALIDATED;
    add_node(stream, {pretend_node::RUN, 0, 0, name, std::move(run)});
    return SUCCESS;
}

}  // namespace pretend

using namespace pretend;

API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
    ENTER("cuStreamCreate");
    return create(out, flags);
}

API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int) {
    ENTER("cuStreamCreateWithPriority");
    return create(out, flags);
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER("cuStreamDestroy_v2");
    if (!driver().streams.has(stream)) return INVALID_HANDLE;
    if (auto capture = stream->capture) {
        invalidate(*capture);
        std::replace(capture->streams.begin(), capture->streams.end(), stream, CUstream{nullptr});
    }
    checker().close(stream->lane);
    driver().streams.alive.erase(stream);
    return SUCCESS;
}

API CUresult cuStreamSynchronize(CUstream handle) {
    ENTER("cuStreamSynchronize");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (const CUresult code = refuse_capture(stream)) return code;
    host_waits(stream);
    return SUCCESS;
}

API CUresult cuStreamQuery(CUstream handle) {
    ENTER("cuStreamQuery");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (const CUresult code = refuse_capture(stream)) return code;
    if (driver().mutated("busy") && !covered_by_host(stream->lane.clock)) return NOT_READY;
    host_waits(stream);
    return SUCCESS;
}

API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    ENTER("cuStreamWaitEvent");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!driver().events.has(event)) return INVALID_HANDLE;
    if (flags > 1) return INVALID_VALUE;
    if (driver().mutated("skip_wait")) return SUCCESS;
    if (stream->capture || (event->capture && under_way(event->capture))) return wait_in_capture(stream, event);
    if (event->capture) return CAPTURED_EVENT;
    stream->lane.clock.join(event->clock);
    return SUCCESS;
}

API CUresult cuEventCreate(CUevent* out, unsigned flags) {
    ENTER("cuEventCreate");
    if (!out || flags > 7) return INVALID_VALUE;
    auto made = std::make_unique<pretend_event>();
    made->device = current->number;
    made->flags = flags;
    *out = driver().events.add(std::move(made));
    return SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER("cuEventDestroy_v2");
    if (!driver().events.has(event)) return INVALID_HANDLE;
    driver().events.alive.erase(event);
    return SUCCESS;
}

API CUresult cuEventRecord(CUevent event, CUstream handle) {
    ENTER("cuEventRecord");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!driver().events.has(event) || event->device != stream->lane.device) return INVALID_HANDLE;
    if (driver().mutated("skip_record")) return SUCCESS;
    if (stream->capture) return record_in_capture(stream, event);
    event->capture = nullptr;
    event->recorded = true;
    event->clock = stream->lane.clock;
    event->time = now_ms();
    return SUCCESS;
}

API CUresult cuEventSynchronize(CUevent event) {
    ENTER("cuEventSynchronize");
    if (!driver().events.has(event)) return INVALID_HANDLE;
    if (const CUresult code = refuse_captured(event)) return code;
    if (event->recorded) checker().host_sees(event->clock);
    return SUCCESS;
}

API CUresult cuEventQuery(CUevent event) {
    ENTER("cuEventQuery");
    if (!driver().events.has(event)) return INVALID_HANDLE;
    if (const CUresult code = refuse_captured(event)) return code;
    if (driver().mutated("busy") && !covered_by_host(event->clock)) return NOT_READY;
    if (event->recorded) checker().host_sees(event->clock);
    return SUCCESS;
}

API CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
    ENTER("cuEventElapsedTime");
    return elapsed(ms, start, end);
}

API CUresult cuEventElapsedTime_v2(float* ms, CUevent start, CUevent end) {
    ENTER("cuEventElapsedTime_v2");
    return elapsed(ms, start, end);
}

API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    ENTER("cuStreamBeginCapture_v2");
    if (!handle) return CAPTURE_UNSUPPORTED;
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (mode < 0 || mode > 2) return INVALID_VALUE;
    if (stream->capture) return ILLEGAL_STATE;
    auto capture = std::make_shared<pretend_capture>();
    capture->origin = stream;
    capture->thread = std::this_thread::get_id();
    capture->mode = mode;
    capture->graph->device = stream->lane.device;
    driver().captures.insert(capture);
    add_lane(capture, stream);
    return SUCCESS;
}

API CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
    Call call("cuStreamEndCapture");
    if (call.code) {
        // Whatever it answers, the real one leaves no stream in a capture.
        if (driver().streams.has(handle) && handle->capture) finish(std::shared_ptr<pretend_capture>(handle->capture));
        return call.code;
    }
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!out) return INVALID_VALUE;
    *out = nullptr;
    auto capture = stream->capture;
    if (!capture) return ILLEGAL_STATE;
    if (capture->origin != stream) return invalidate(*capture), CAPTURE_UNMATCHED;
    if (capture->mode != 2 && capture->thread != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
    finish(capture);
    if (capture->invalid) return CAPTURE_INVALIDATED;
    join(capture->joined[0], std::vector<u32>(capture->graph->lanes));
    for (u32 lane = 1; lane < capture->graph->lanes; ++lane)
        if (capture->joined[0][lane] < capture->joined[lane][lane]) return CAPTURE_UNJOINED;
    capture->graph->handed = checker().handed();
    *out = capture->graph.get();
    driver().graphs[*out] = capture->graph;
    return SUCCESS;
}

API CUresult cuStreamIsCapturing(CUstream handle, int* status) {
    ENTER("cuStreamIsCapturing");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    return SUCCESS;
}

API CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
    ENTER("cuThreadExchangeStreamCaptureMode", Call::NOTHING);
    static thread_local int own = 0;
    if (!mode || *mode < 0 || *mode > 2) return INVALID_VALUE;
    std::swap(own, *mode);
    return SUCCESS;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long) {
    ENTER("cuGraphInstantiateWithFlags");
    auto found = driver().graphs.find(graph);
    if (!out || found == driver().graphs.end()) return INVALID_VALUE;
    auto made = std::make_unique<pretend_graph_exec>();
    made->graph = found->second;
    made->lanes.resize(made->graph->lanes);
    for (u32 i = 1; i < made->graph->lanes; ++i)
        if (!checker().open(made->lanes[i], made->graph->device)) return OUT_OF_MEMORY;
    *out = driver().execs.add(std::move(made));
    return SUCCESS;
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
    ENTER("cuGraphUpload");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!driver().execs.has(exec)) return INVALID_VALUE;
    return refuse_capture(stream);
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
    ENTER("cuGraphLaunch");
    CUstream stream;
    if (const CUresult code = stream_of(handle, stream)) return code;
    if (!driver().execs.has(exec) || exec->graph->device != stream->lane.device) return INVALID_VALUE;
    if (const CUresult code = refuse_capture(stream)) return code;
    // One launch of a graph comes after the one before, whatever their streams are.
    stream->lane.clock.join(exec->done);
    checker().replaying = exec->graph->handed;
    const auto& nodes = exec->graph->nodes;
    std::map<u32, Clock> records;
    for (u32 i = 0; i < nodes.size(); ++i) {
        Lane& lane = nodes[i].lane ? exec->lanes[nodes[i].lane] : stream->lane;
        if (nodes[i].kind == pretend_node::BLANK) nodes[i].run();
        if (nodes[i].kind == pretend_node::RECORD) records[i] = lane.clock;
        if (nodes[i].kind == pretend_node::WAIT) lane.clock.join(records[nodes[i].on]);
        if (nodes[i].kind != pretend_node::RUN) continue;
        checker().begin(lane, nodes[i].name);
        nodes[i].run();
    }
    exec->done = stream->lane.clock;
    checker().replaying = 0;
    return SUCCESS;
}

API CUresult cuGraphGetNodes(CUgraph graph, void** out, size_t* count) {
    ENTER("cuGraphGetNodes");
    auto found = driver().graphs.find(graph);
    if (!count || found == driver().graphs.end()) return INVALID_VALUE;
    size_t at = 0;
    for (auto& node : graph->nodes) {
        if (node.kind != pretend_node::RUN) continue;
        if (out && at < *count) out[at] = &node;
        ++at;
    }
    *count = at;
    return SUCCESS;
}

API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    ENTER("cuGraphExecDestroy");
    if (!driver().execs.has(exec)) return INVALID_VALUE;
    for (u32 i = 1; i < exec->lanes.size(); ++i) checker().close(exec->lanes[i]);
    driver().execs.alive.erase(exec);
    return SUCCESS;
}

API CUresult cuGraphDestroy(CUgraph graph) {
    ENTER("cuGraphDestroy");
    return driver().graphs.erase(graph) ? SUCCESS : INVALID_VALUE;
}
