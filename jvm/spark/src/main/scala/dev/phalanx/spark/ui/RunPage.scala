package dev.phalanx.spark.ui

import scala.util.Try
import scala.xml.{Node, NodeSeq}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}

import dev.phalanx.spark.internal.Json

/** One run: `/phalanx/run/?id=RUN`, and `/phalanx/run/json?id=RUN`. */
final private[spark] class RunPage(store: RunStore) extends UiPage {
  import UiPage.Parameters

  private val MostRefreshSeconds = 3600

  override def title(parameters: Parameters): String =
    found(parameters).fold("Phalanx") { case (_, snapshot) => s"Phalanx: ${snapshot.name}" }

  override def html(parameters: Parameters): Seq[Node] = found(parameters) match {
    case None =>
      <p>There is no such run: it never was, or there are {
        RunStore.MostRuns.toString
      } newer ones. <a href="../">All runs</a></p>
    case Some((run, snapshot)) =>
      val refresh = UiPage.parameter(parameters, "refresh")
        .flatMap(text => Try(text.toInt).toOption)
        .filter(seconds => seconds > 0 && seconds <= MostRefreshSeconds && !snapshot.over && !run.cut)
      val name = title(parameters)
      <div>
        {Shown.style}
        {refresh.fold(NodeSeq.Empty)(seconds => <meta http-equiv="refresh" content={seconds.toString}/>)}
        {facts(run, snapshot, refresh)}
        {snapshot.failure.fold(NodeSeq.Empty)(failure)}
        {section("Timeline", Timeline.of(snapshot))}
        {if (snapshot.losses.size > 1) section("Loss", LossCurve.of(snapshot.losses, name)) else NodeSeq.Empty}
        {if (snapshot.restarts.isEmpty) NodeSeq.Empty else section("Restarts", restarts(snapshot))}
        {section(s"Ranks (${snapshot.worldSize})", RankTable.of(snapshot))}
        {section("Newest lines", lines(snapshot))}
      </div>
  }

  override def json(parameters: Parameters): JsonNode =
    RunPage.jsonOf(store, UiPage.parameter(parameters, "id").getOrElse(""))

  private def found(parameters: Parameters): Option[(StoredRun, RunSnapshot)] =
    UiPage.parameter(parameters, "id").flatMap(store.run).map { run =>
      run -> RunSnapshot.of(Json.read(if (run.snapshot.isEmpty) "{}" else run.snapshot))
    }

  private def facts(run: StoredRun, snapshot: RunSnapshot, refresh: Option[Int]): Node = {
    val id = Shown.encoded(run.run)
    <ul class="list-unstyled">
      {fact("State", Shown.state(snapshot.state, run.cut))}
      {fact("Started", text(Shown.date(run.started / 1e3)))}
      {fact(if (snapshot.over) "Duration" else "Duration so far", text(Shown.duration(snapshot.seconds)))}
      {fact("Ranks", text(snapshot.worldSize.toString))}
      {snapshot.step.fold(NodeSeq.Empty) { case (step, of) => fact("Step", text(Shown.step(step, of))) }}
      {if (snapshot.stage.isEmpty) NodeSeq.Empty else fact("Kind of stage", text(snapshot.stage))}
      {if (run.stages.isEmpty) NodeSeq.Empty else fact("Spark's stages", Shown.stages(run, "../../"))}
      {
      if (snapshot.slow.isEmpty) NodeSeq.Empty
      else fact("Slow ranks", text(snapshot.slow.toSeq.sorted.take(RunPage.MostNamed).mkString(", ")))
    }
      <li><a href="../">All runs</a> · <a href={s"json?id=$id"}>JSON</a>{
      if (snapshot.over || run.cut) NodeSeq.Empty
      else if (refresh.isEmpty) <span> · <a href={s"?id=$id&refresh=5"}>Reload every 5 s</a></span>
      else <span> · <a href={s"?id=$id"}>Stop reloading</a></span>
    }</li>
    </ul>
  }

  private def failure(of: RunFailure): Node = {
    val where = of.rank.map(rank => s"rank $rank").toSeq ++ Some(of.host).filter(_.nonEmpty).map("on " + _)
    <div class="phx-failure">
      <h5 style="color:#c62f3e">{("Failed" +: where).mkString(" ", " ", "").trim}</h5>
      <div class="phx-text">{of.cause}</div>
      {
      if (of.text.isEmpty) NodeSeq.Empty
      else <details><summary>All that is known</summary>{pre(of.text)}</details>
    }
    </div>
  }

  private def restarts(snapshot: RunSnapshot): Node =
    <table class="table table-bordered table-sm table-striped" style="width:auto">
      <thead><tr><th>Time</th><th>Cause</th></tr></thead>
      <tbody>{
      snapshot.restarts.map { at =>
        <tr><td style="white-space:nowrap">{Shown.date(at.time)}</td><td class="phx-text">{
          at.cause
        }</td></tr>
      }
    }</tbody>
    </table>

  private def lines(snapshot: RunSnapshot): Node =
    if (snapshot.lines.isEmpty) <p>No line has come yet.</p> else pre(snapshot.lines.mkString("\n"))

  private def pre(text: String): Node =
    <pre class="phx-lines">{text}</pre>

  private def section(name: String, content: NodeSeq): NodeSeq = <h4 style="margin-top:1em">{name}</h4> ++ content

  private def fact(name: String, value: NodeSeq): Node = <li><strong>{name}:</strong> {value}</li>

  private def text(text: String): NodeSeq = scala.xml.Text(text)
}

private[spark] object RunPage {
  val MostNamed = 32

  /** What is known of a run, as JSON; `{"version": 1}` where nothing is. */
  def jsonOf(store: RunStore, id: String): JsonNode =
    store.run(id).fold(JsonNodeFactory.instance.objectNode().put("version", 1))(jsonOf)

  def jsonOf(run: StoredRun): ObjectNode = {
    val json = JsonNodeFactory.instance.objectNode().put("version", 1).put("run", run.run).put("cut", run.cut)
    val stages = json.putArray("stages")
    run.stages.forEach(id => stages.add(id): Unit)
    json.set[JsonNode]("snapshot", if (run.snapshot.isEmpty) null else Json.read(run.snapshot)): Unit
    json
  }
}
