package dev.phalanx.spark.ui

import java.util.{LinkedHashMap => JLinkedHashMap, Map => JMap}

import scala.util.Try
import scala.xml.{Node, NodeSeq, Unparsed}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}

import dev.phalanx.spark.internal.Json

/** One run: `/phalanx/run/?id=RUN`, and `/phalanx/run/json?id=RUN`.
  *
  * TAB-6 (made-once): however many browsers ask, and however often, a page is made once for each snapshot.
  */
final private[spark] class RunPage(store: RunStore, questions: Option[StacksQuestions] = None) extends UiPage {
  import UiPage.Parameters

  private val MostRefreshSeconds = 3600
  private val MostMade = 8

  private val newest = new JLinkedHashMap[(String, Option[Int]), (StoredRun, String)](16, 0.75f, true) {
    override protected def removeEldestEntry(
        eldest: JMap.Entry[(String, Option[Int]), (StoredRun, String)]
    ): Boolean = size > MostMade
  }

  override def title(parameters: Parameters): String =
    UiPage.parameter(parameters, "id").flatMap(store.run).fold("Phalanx")(run => s"Phalanx: ${RunPage.nameOf(run)}")

  override def html(parameters: Parameters): Seq[Node] =
    UiPage.parameter(parameters, "id").flatMap(store.run) match {
      case None =>
        <p>There is no such run: it never was, or there are {RunStore.MostRuns.toString} newer ones. <a href="../">All
        runs</a></p>
      case Some(run) =>
        NodeSeq.fromSeq(Unparsed(made(run, UiPage.parameter(parameters, "refresh")))) ++ questions.map(stacks(run, _))
    }

  /** What the ranks' threads do, if somebody has asked, and a button that asks. It is made for each request. */
  private def stacks(run: StoredRun, questions: StacksQuestions): Node = {
    val runs = run.snapshot.nonEmpty && !run.cut && !RunSnapshot.of(Json.read(run.snapshot)).over
    val found = questions.of(run.run)
    <div>
      {
      found match {
        case Some(_: StacksQuestions.Waiting) =>
          <div><meta http-equiv="refresh" content="1"/><p>The run's driver is asked for the stacks.</p></div>
        case Some(StacksQuestions.Unanswered) =>
          <p>The run's driver did not answer within {
            (StacksQuestions.PatienceMillis / 1000).toString
          } s: it may hang.</p>
        case Some(StacksQuestions.Answered(at, text)) => section(s"Stacks at ${Shown.date(at / 1e3)}", pre(text))
        case None                                     => NodeSeq.Empty
      }
    }
      {if (runs && !found.exists(_.isInstanceOf[StacksQuestions.Waiting])) button(run.run) else NodeSeq.Empty}
    </div>
  }

  private def button(run: String): Node =
    <form method="post" action="stacks/">
      <input type="hidden" name="id" value={run}/>
      <button class="btn btn-secondary btn-sm" type="submit">What do the ranks' threads do?</button>
    </form>

  /** The HTML of a run, which is made once for each snapshot, however many ask. */
  private def made(run: StoredRun, refresh: Option[String]): String = newest.synchronized {
    val seconds =
      refresh.flatMap(text => Try(text.toInt).toOption).filter(each => each > 0 && each <= MostRefreshSeconds)
    val key = (run.run, seconds)
    val before = newest.get(key)
    if (before != null && before._1.isSame(run)) before._2
    else {
      val text = page(run, RunSnapshot.of(run), seconds).toString
      newest.put(key, run -> text)
      text
    }
  }

  private def page(run: StoredRun, snapshot: RunSnapshot, seconds: Option[Int]): Node = {
    val refresh = seconds.filter(_ => !snapshot.over && !run.cut)
    <div>
      {Shown.style}
      {refresh.fold(NodeSeq.Empty)(seconds => <meta http-equiv="refresh" content={seconds.toString}/>)}
      {facts(run, snapshot, refresh)}
      {snapshot.failure.fold(NodeSeq.Empty)(failure)}
      {section("Timeline", Timeline.of(snapshot))}
      {
      if (snapshot.losses.size > 1) section("Loss", LossCurve.of(snapshot.losses, snapshot.name))
      else NodeSeq.Empty
    }
      {if (snapshot.restarts.isEmpty) NodeSeq.Empty else section("Restarts", restarts(snapshot))}
      {section(s"Ranks (${snapshot.worldSize})", RankTable.of(snapshot))}
      {section("Newest lines", lines(snapshot))}
    </div>
  }

  override def json(parameters: Parameters): JsonNode =
    RunPage.jsonOf(store, UiPage.parameter(parameters, "id").getOrElse(""))

  private def facts(run: StoredRun, snapshot: RunSnapshot, refresh: Option[Int]): Node = {
    val id = Shown.encoded(run.run)
    <ul class="list-unstyled">
      {fact("State", Shown.state(snapshot.state, run.cut))}
      {if (snapshot.waitsFor.isEmpty) NodeSeq.Empty else fact("Queue", text(snapshot.waitsFor))}
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
      <h5 style="color:#c62f3e">{if (where.isEmpty) "Failed" else where.mkString("Failed: ", " ", "")}</h5>
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

  def nameOf(run: StoredRun): String =
    if (run.snapshot.isEmpty) "" else Json.read(run.snapshot).path("name").asText("")

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
